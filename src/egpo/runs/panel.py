"""The live view's picture of a run: a row once shown stays, so that nothing jumps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from egpo.runs.health import Note
from egpo.runs.progress import VALIDATED, Progress
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
    share,
    sparkline,
)

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
