"""Progress on stderr: bars if stderr is a terminal; elsewhere a line after some seconds without output."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from egpo.heartbeat import Heartbeat

if TYPE_CHECKING:
    from egpo.experiments.screen import Screen
    from egpo.runs.ledger import OnStep, StepReport


@dataclass(frozen=True)
class ProgressView:
    """A progress bar: `watch(done, total)` updates it, and `say` prints a line above it."""

    watch: Callable[[int, int], None]
    say: Callable[[str], None]


@contextmanager
def shown_progress(label: str) -> Iterator[ProgressView]:
    """Show a progress bar with this label until the `with` block ends."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True, highlight=False)
    with (
        heartbeat(f"{label}: no result yet") as beat,
        Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress,
    ):
        bar = progress.add_task(escape(label), total=None)

        def watch(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)
            beat.doing = f"{label}: {done:,} of {total:,}"

        yield ProgressView(watch, say=lambda line: console.print(line, markup=False, soft_wrap=True))


@contextmanager
def staged_progress(label: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar until the `with` block ends. Yield a function (stage, done, total) that updates it.

    The bar's label is `label` at first, then the name of the current stage.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True, highlight=False)
    with (
        heartbeat(label) as beat,
        Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress,
    ):
        bar = progress.add_task(label, total=None)

        def watch(stage: str, done: int, total: int) -> None:
            progress.update(bar, description=stage, completed=done, total=total)
            beat.doing = f"{stage}: {done:,} of {total:,}"

        yield watch


def counted(what: str) -> Callable[[Iterable[Any]], Iterable[Any]]:
    """Return a function that yields the items of a stream unchanged, and displays how many it has yielded."""

    def watch(stream: Iterable[Any]) -> Iterable[Any]:
        columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} {task.description}"), TimeElapsedColumn())
        with (
            heartbeat(f"reading {what}"),
            Progress(
                *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
            ) as progress,
        ):
            yield from progress.track(stream, description=what, total=None)

    return watch


def terminal_screen(*, as_json: bool = False) -> "Screen":
    """Return an object through which an experiment prints messages to stdout and progress bars to stderr.

    With `as_json`, stdout has one JSON object per training step and nothing else, and messages go to stderr.
    """
    from egpo.experiments.screen import Screen

    console = Console(highlight=False, stderr=as_json)
    on_step = print_step if as_json else None
    return Screen(lambda line: console.print(line, markup=False, soft_wrap=True), shown_progress, on_step)


def heartbeat(doing: str) -> "Heartbeat | _Silence":
    """Return a context that prints a line to stderr after some seconds without output; on a terminal, none."""
    return _Silence() if sys.stderr.isatty() else Heartbeat(partial(print, file=sys.stderr, flush=True), doing)


@contextmanager
def steps_as_json(label: str) -> "Iterator[OnStep]":
    """Yield a function that prints a finished step as JSON. Lines about slow steps are printed to stderr meanwhile."""
    with heartbeat(label) as beat:

        def show(report: "StepReport") -> None:
            print_step(report)
            beat.doing = f"{label}: step {report.step} of {report.num_steps} is done"
            beat.spoke()

        yield show


def print_step(report: "StepReport") -> None:
    """Print a finished step as one line of JSON. What is not a finite number is null, which JSON can express."""
    figures = {
        "metrics": {name: _number(value) for name, value in report.metrics.items()},
        "timings": {name: _number(value) for name, value in report.timings.items()},
    }
    print(json.dumps({"step": report.step, "num_steps": report.num_steps, **figures}), flush=True)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


class _Silence:
    """A heartbeat that prints nothing."""

    doing = ""

    def __enter__(self) -> "_Silence":
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def spoke(self) -> None:
        return None
