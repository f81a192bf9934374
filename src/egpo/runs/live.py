"""The live view of a run: on a terminal a panel that is redrawn, elsewhere one log line per step.

`LiveView` receives metrics, timings and health notes from any engine and keeps them in `Progress`. `panel` draws them;
which metrics it shows, and in which row, is in `metric_table`.
"""

import math
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import fmean
from types import TracebackType
from typing import TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from egpo.errors import EgpoWarning
from egpo.heartbeat import Heartbeat
from egpo.runs.formatting import format_duration, format_value, log_line, sparkline
from egpo.runs.health import Note
from egpo.runs.metric_table import (
    METRICS,
    REWARD,
    STEP_S,
    VALIDATION_ACCURACY,
    VALIDATION_LOSS,
    PanelCell,
    validation_accuracy,
)

WIDTH = 80
_SPARKLINE_WIDTH = 40
_STAGE_WIDTH = 16
_NOTES_SHOWN = 3
_STYLES = {"warning": "yellow", "danger": "bold red"}
_REFRESHES_PER_S = 4
_STEPS_FOR_ESTIMATE = 20
_BOUND = 1e100  # sums of larger values overflow


class LiveView:
    """The display of a run while it trains, for any engine.

    Redraws a panel on a terminal. In a pipe, with `CI` set or on a dumb terminal it prints one line per step, and one
    about every 15 seconds while a step takes longer.
    `NO_COLOR` is honoured. With `quiet` it shows nothing.
    """

    def __init__(
        self,
        total_steps: int,
        title: str,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        quiet: bool = False,
    ) -> None:
        self._console = console or Console(highlight=False, quiet=quiet)
        self._clock = clock
        self._progress = Progress(total_steps, title)
        self._stage, self._stage_start = "", clock()
        self._last_show = clock()
        self._step_s: deque[float] = deque(maxlen=_STEPS_FOR_ESTIMATE)
        self._between_s, self._num_timed = 0.0, 0
        self._live = self._new_live() if _is_live(self._console) and not quiet else None
        self._heartbeat = None if self._live or quiet else Heartbeat(self._say_alive, "training")
        self.failure: str | None = None
        """The reason why writing to the screen failed (a closed pipe, a full device); None while it works."""

    def __enter__(self) -> "LiveView":
        self._last_show = self._clock()
        if self._live is not None:
            self._draw(self._live.start)
        else:
            self.say(self._progress.title)
        if self._heartbeat is not None:
            self._heartbeat.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stage = ""
        if self._heartbeat is not None:
            self._heartbeat.__exit__(kind, error, trace)
        if self._live is not None:
            self._draw(self._live.stop)

    def stage(self, name: str) -> None:
        """Set the stage that is running now: `sample`, `judge`, ..."""
        self._stage, self._stage_start = name, self._clock()

    def show(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """Show the metrics and timings of a finished step."""
        figures = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._time_step(step, timings)
        self._progress.add(step, figures, timings)
        if self._live is None:
            self.say(log_line(step, self._progress.total_steps, figures, timings, self._progress.left_s))

    def note(self, note: Note) -> None:
        """Show a health note."""
        self._progress.notes.append(note)
        if self._live is None:
            self.say(str(note))

    def say(self, text: str) -> None:
        """Print a line of text: above the panel, or after the log lines so far."""
        if self._heartbeat is not None:
            self._heartbeat.spoke()
        self._draw(lambda: self._console.print(Text(text), soft_wrap=True))

    def _say_alive(self, text: str) -> None:
        """Print a line about a slow step, or about the time before the first one."""
        stage = f", {self._stage} for {self._clock() - self._stage_start:.0f} s" if self._stage else ""
        self.say(f"{text}: {self._progress.step} of {self._progress.total_steps} steps are done{stage}")

    def _draw(self, draw: Callable[[], object]) -> None:
        """Call `draw`, unless the output has failed before. If it fails now, store the reason in `failure`."""
        if self.failure is not None:
            return
        try:
            draw()
        except (OSError, SystemExit) as error:  # rich raises SystemExit when a pipe is closed
            cause = error.__context__ if isinstance(error, SystemExit) else error
            self.failure = getattr(cause, "strerror", None) or str(cause or "closed")
            with suppress(OSError, ValueError):  # flushing the rest of the buffer at exit must not fail again
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._console.file.fileno())

    def _time_step(self, step: int, timings: Mapping[str, float]) -> None:
        """Estimate the time left: remaining steps * (mean of the last twenty steps + mean time between steps).

        The time between steps is averaged over the whole run, because it is mostly spent on checkpoints, which are
        rare and slow. Step 0 (a validation) and the time before the first step (loading) do not count.
        """
        elapsed, self._last_show = self._clock() - self._last_show, self._clock()
        if step > 0:
            own = timings.get(STEP_S, elapsed)
            self._between_s += max(0.0, elapsed - own) if self._step_s else 0.0
            self._step_s.append(own)
            self._num_timed += 1
            a_step = fmean(self._step_s) + self._between_s / self._num_timed
            self._progress.left_s = a_step * (self._progress.total_steps - step)

    def _new_live(self) -> Live:
        return Live(console=self._console, get_renderable=self._render, refresh_per_second=_REFRESHES_PER_S)

    def _render(self) -> RenderableType:
        return panel(self._progress, self._stage, self._clock() - self._stage_start)


def _is_live(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal and not os.environ.get("CI")


@dataclass
class Progress:
    """The state that the panel shows. `values`: metrics and timings of the last step, and of the latest validation.

    `seen`: names of the metrics of all steps so far. A row that was shown once stays, so that the panel keeps its
    height.
    """

    total_steps: int
    title: str
    step: int = 0
    values: Mapping[str, float] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    rewards: list[float] = field(default_factory=list)
    validation: dict[str, float] = field(default_factory=dict)
    validation_step: int = 0
    left_s: float | None = None
    notes: list[Note] = field(default_factory=list)

    def add(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """Add a finished step. After a step without a validation, the values of the latest validation stay."""
        self.step = step
        if REWARD in metrics:
            self.rewards.append(max(-_BOUND, min(_BOUND, metrics[REWARD])))
        if (accuracy := validation_accuracy(metrics)) is not None:
            self.validation[VALIDATION_ACCURACY], self.validation_step = accuracy, step
        if VALIDATION_LOSS in metrics:
            self.validation[VALIDATION_LOSS] = metrics[VALIDATION_LOSS]
        self.values = {**metrics, **timings, **self.validation}
        self.seen.update(self.values)


def panel(progress: Progress, stage: str, stage_s: float) -> RenderableType:
    """Draw the panel, at most 80 columns wide, with the last health notes below it."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True, min_width=max(map(len, _ROWS)))
    rows.add_column(no_wrap=True, overflow="ellipsis")
    for label, cells in _ROWS.items():
        if progress.seen.intersection(cells):
            rows.add_row(label, _row_text(cells, progress))
    title = Text(f" {progress.title} ", style="bold")
    body = Group(_head(progress, stage, stage_s), Text(), rows)
    frame = Panel(body, title=title, title_align="left", box=box.ROUNDED, border_style="cyan", width=WIDTH)
    return Group(frame, *(_note(note) for note in progress.notes[-_NOTES_SHOWN:]))


def _head(progress: Progress, stage: str, stage_s: float) -> RenderableType:
    head = Table.grid(padding=(0, 2), expand=True)
    head.add_column(no_wrap=True)
    head.add_column(ratio=1)
    head.add_column(no_wrap=True, justify="right")
    head.add_column(no_wrap=True, justify="right", width=_STAGE_WIDTH)
    done = Text.assemble("step ", (f"{progress.step}", "bold"), f" of {progress.total_steps}")
    bar = ProgressBar(
        total=progress.total_steps, completed=progress.step, complete_style="cyan", finished_style="green"
    )
    left = "done" if progress.step >= progress.total_steps else f"{format_duration(progress.left_s)} left"
    under_way = Text(f"{stage} {stage_s:.0f} s" if stage else "", style="italic dim")
    head.add_row(done, bar, left, under_way)
    return head


def _panel_rows() -> dict[str, dict[str, PanelCell]]:
    """Return the rows of the panel: label of the row -> {name of the metric: its cell}."""
    rows: dict[str, dict[str, PanelCell]] = {}
    for metric in METRICS:
        if metric.panel:
            rows.setdefault(metric.panel.row, {})[metric.name] = metric.panel
    return rows


_ROWS = _panel_rows()


def _row_text(cells: Mapping[str, PanelCell], progress: Progress) -> Text:
    text = Text()
    for name, cell in cells.items():
        if name in progress.seen or not cell.optional:
            text.append(_cell_text(name, cell, progress))
    return text


def _cell_text(name: str, cell: PanelCell, progress: Progress) -> Text:
    """Return one cell as `label value`, padded to a fixed width. The reward's cell is its value and a sparkline."""
    value = format_value(progress.values.get(name), cell.format)
    if name == REWARD:
        bars = sparkline(progress.rewards, _SPARKLINE_WIDTH)
        return Text.assemble((f"{value:<7}", "bold green"), (bars, "green"))
    if name == VALIDATION_ACCURACY and name in progress.values:
        value = f"{value} (step {progress.validation_step})"
    return Text.assemble((f"{cell.label} ", "dim"), f"{value:<{max(1, 20 - len(cell.label))}}")


def _note(note: Note) -> RenderableType:
    """Return a health note as text after a mark `!`; wrapped lines are indented."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=1)
    grid.add_column(max_width=WIDTH - 4)
    style = _STYLES[note.severity]
    text = Text.assemble((f"step {note.step}: {note.message}. ", style), (f"Try: {note.advice}.", ""))
    grid.add_row(Text("!", style=style), text)
    return grid


@contextmanager
def warnings_printed_by(print_line: Callable[[str], None]) -> Iterator[None]:
    """Print egpo's own warnings during the block with `print_line`, without the source line that Python adds."""
    with warnings.catch_warnings():
        before = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, EgpoWarning):
                print_line(f"warning: {message}")
            else:
                before(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield
