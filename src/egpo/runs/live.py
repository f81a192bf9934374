"""What the live view has seen of a run so far.

The live view's picture of a run: a row once shown stays, so that nothing jumps.

A run on the screen: a panel that is redrawn on a terminal, one plain line a step anywhere else.

Our warnings where a run is watched.
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
from egpo.runs.health import Note
from egpo.runs.readings import (
    ACCURACY,
    AGREEING,
    ENTROPIES,
    GRAD_NORM,
    KL,
    LENGTH,
    LOSS,
    REWARD,
    STEP_S,
    TOKENS_PER_S,
    TRUNCATED,
    VALIDATION_LOSS,
    duration,
    figure,
    plain_line,
    share,
    sparkline,
    validation_accuracy,
)

VALIDATED = "validated"
"""Among the names that were `seen`: a validation accuracy, whatever its source is called."""
_BOUND = 1e100  # sums of what is larger overflow


@dataclass
class Progress:
    """`metrics` and `timings` are the last step's; `seen` are the names of all steps."""

    total_steps: int
    title: str
    step: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    rewards: list[float] = field(default_factory=list)
    validation: float | None = None
    validation_step: int = 0
    validation_loss: float | None = None
    left_s: float | None = None
    notes: list[Note] = field(default_factory=list)

    def add(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """A step that is done. Validation is rarer: its last figure stays."""
        self.step, self.metrics, self.timings = step, metrics, timings
        self.seen.update(metrics, timings)
        if REWARD in metrics:
            self.rewards.append(max(-_BOUND, min(_BOUND, metrics[REWARD])))
        if (accuracy := validation_accuracy(metrics)) is not None:
            self.validation, self.validation_step = accuracy, step
            self.seen.add(VALIDATED)
        self.validation_loss = metrics.get(VALIDATION_LOSS, self.validation_loss)


WIDTH = 80
_SPARKS = 40
_STAGE_WIDTH = 16
_NOTES_SHOWN = 3
_STYLES = {"warning": "yellow", "danger": "bold red"}


def panel(progress: Progress, stage: str, stage_s: float) -> RenderableType:
    """80 columns at most, fewer where the terminal is narrower; the last notes of the health rules below it."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True, min_width=max(map(len, ROWS)))
    rows.add_column(no_wrap=True, overflow="ellipsis")
    for label, row in ROWS.items():
        if progress.seen.intersection(row.names):
            rows.add_row(label, row.text(progress))
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
    left = "done" if progress.step >= progress.total_steps else f"{duration(progress.left_s)} left"
    under_way = Text(f"{stage} {stage_s:.0f} s" if stage else "", style="italic dim")
    head.add_row(done, bar, left, under_way)
    return head


@dataclass(frozen=True)
class Row:
    """Shown from the first step that has one of the metrics `names`."""

    names: tuple[str, ...]
    text: Callable[[Progress], Text]


def _loss(progress: Progress) -> Text:
    return _pairs({"train": figure(progress.metrics.get(LOSS)), "validation": figure(progress.validation_loss)})


def _reward(progress: Progress) -> Text:
    shown = f"{figure(progress.metrics.get(REWARD)):<7}"
    return Text.assemble((shown, "bold green"), (sparkline(progress.rewards, _SPARKS), "green"))


def _accuracy(progress: Progress) -> Text:
    found = progress.validation
    validated = "–" if found is None else f"{figure(found)} (step {progress.validation_step})"
    return _pairs({"train": figure(progress.metrics.get(ACCURACY)), "validation": validated})


def _entropy(progress: Progress) -> Text:
    return _pairs({name: figure(progress.metrics.get(key)) for name, key in ENTROPIES.items()})


def _policy(progress: Progress) -> Text:
    figures = {"gradient": figure(progress.metrics.get(GRAD_NORM))}
    if KL in progress.seen:
        figures["KL"] = figure(progress.metrics.get(KL), 4)
    return _pairs(figures)


def _groups(progress: Progress) -> Text:
    return _pairs({"without a gradient": share(progress.metrics.get(AGREEING))})


def _length(progress: Progress) -> Text:
    metrics = progress.metrics
    return _pairs({"mean": figure(metrics.get(LENGTH), 0), "cut off": share(metrics.get(TRUNCATED))})


def _speed(progress: Progress) -> Text:
    tokens = progress.timings.get(TOKENS_PER_S)
    speed = "–" if tokens is None else f"{tokens:,.0f}"
    return _pairs({"tokens/s": speed, "seconds a step": figure(progress.timings.get(STEP_S), 2)})


ROWS = {
    "loss": Row((LOSS, VALIDATION_LOSS), _loss),
    "reward": Row((REWARD,), _reward),
    "accuracy": Row((ACCURACY, VALIDATED), _accuracy),
    "entropy": Row(tuple(ENTROPIES.values()), _entropy),
    "policy": Row((GRAD_NORM, KL), _policy),
    "groups": Row((AGREEING,), _groups),
    "length": Row((LENGTH, TRUNCATED), _length),
    "speed": Row((TOKENS_PER_S, STEP_S), _speed),
}


def _pairs(figures: Mapping[str, str]) -> Text:
    """`name figure` after each other, each pair as wide as the others, so that columns form."""
    text = Text()
    for name, shown in figures.items():
        text.append(f"{name} ", style="dim")
        text.append(f"{shown:<{max(1, 20 - len(name))}}")
    return text


def _note(note: Note) -> RenderableType:
    """Wrapped under itself, and not under its mark."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=1)
    grid.add_column(max_width=WIDTH - 4)
    style = _STYLES[note.severity]
    text = Text.assemble((f"step {note.step}: {note.message}. ", style), (f"Try: {note.advice}.", ""))
    grid.add_row(Text("!", style=style), text)
    return grid


_REFRESHES_PER_S = 4
_STEPS_FOR_ESTIMATE = 20


class LiveView:
    """Fed by any engine: it knows the names of metrics and nothing else.

    Live only on a real terminal: not in a pipe, not where `CI` is set, not on a dumb one. `NO_COLOR` is rich's.
    """

    def __init__(
        self,
        total_steps: int,
        title: str,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(highlight=False)
        self._clock = clock
        self._progress = Progress(total_steps, title)
        self._stage, self._stage_start = "", clock()
        self._last_show = clock()
        self._step_s: deque[float] = deque(maxlen=_STEPS_FOR_ESTIMATE)
        self._between_s, self._num_timed = 0.0, 0
        self._live = self._new_live() if _is_live(self._console) else None
        self.failure: str | None = None
        """Why nothing can be shown any more: a closed pipe (`| head`), a full device, a terminal that is gone."""

    def __enter__(self) -> "LiveView":
        self._last_show = self._clock()
        if self._live is not None:
            self._draw(self._live.start)
        else:
            self.say(self._progress.title)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stage = ""
        if self._live is not None:
            self._draw(self._live.stop)

    def stage(self, name: str) -> None:
        """What is being done now: `sample`, `judge`, ..."""
        self._stage, self._stage_start = name, self._clock()

    def show(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """A step that is done."""
        figures = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._time_step(step, timings)
        self._progress.add(step, figures, timings)
        if self._live is None:
            self.say(plain_line(step, self._progress.total_steps, figures, timings, self._progress.left_s))

    def note(self, note: Note) -> None:
        self._progress.notes.append(note)
        if self._live is None:
            self.say(str(note))

    def say(self, text: str) -> None:
        """A line above the panel, or in its turn."""
        self._draw(lambda: self._console.print(Text(text), soft_wrap=True))

    def _draw(self, draw: Callable[[], object]) -> None:
        """A screen that fails is not drawn to again: who trains decides what follows from `failure`, in good order."""
        if self.failure is not None:
            return
        try:
            draw()
        except (OSError, SystemExit) as error:  # rich leaves the interpreter when a pipe is closed
            cause = error.__context__ if isinstance(error, SystemExit) else error
            self.failure = getattr(cause, "strerror", None) or str(cause or "closed")
            with suppress(OSError, ValueError):  # what is left in the buffer must not fail again at the end
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._console.file.fileno())

    def _time_step(self, step: int, timings: Mapping[str, float]) -> None:
        """Time left: the steps to come, each as long as the last twenty on average, and what lies between two steps,
        such as a checkpoint now and then, on the average of all of them. Step 0 is no step. Before the first there is
        the loading, which does not come again."""
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


@contextmanager
def warnings_said_by(say: Callable[[str], None]) -> Iterator[None]:
    """Our warnings as lines of the view, without the place in our code that gave them."""
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
                say(f"warning: {message}")
            else:
                before(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield
