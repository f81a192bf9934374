"""Progress bars on stderr. They are shown only if stderr is a terminal, so that log files do not contain them."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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

if TYPE_CHECKING:
    from egpo.experiments.screen import Screen


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
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task(escape(label), total=None)
        yield ProgressView(
            watch=lambda done, total: progress.update(bar, completed=done, total=total),
            say=lambda line: console.print(line, markup=False, soft_wrap=True),
        )


@contextmanager
def staged_progress(label: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar until the `with` block ends. Yield a function (stage, done, total) that updates it.

    The bar's label is `label` at first, then the name of the current stage.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task(label, total=None)
        yield lambda stage, done, total: progress.update(bar, description=stage, completed=done, total=total)


def counted(what: str) -> Callable[[Iterable[Any]], Iterable[Any]]:
    """Return a function that yields the items of a stream unchanged, and displays how many it has yielded."""

    def watch(stream: Iterable[Any]) -> Iterable[Any]:
        columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} {task.description}"), TimeElapsedColumn())
        with Progress(
            *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
        ) as progress:
            yield from progress.track(stream, description=what, total=None)

    return watch


def terminal_screen() -> "Screen":
    """Return an object through which an experiment prints messages to stdout and progress bars to stderr."""
    from egpo.experiments.screen import Screen

    console = Console(highlight=False)
    return Screen(say=lambda line: console.print(line, markup=False, soft_wrap=True), watched=shown_progress)
