"""A bar on stderr while a model answers; nothing where nobody looks."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@dataclass(frozen=True)
class ProgressView:
    """`watch` is told how many responses are there, out of how many; `say` writes a line above the bar."""

    watch: Callable[[int, int], None]
    say: Callable[[str], None]


@contextmanager
def shown_progress(label: str) -> Iterator[ProgressView]:
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
