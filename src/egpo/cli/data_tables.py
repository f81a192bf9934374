"""What `prepare` and `convert` print: tables on stdout, progress on stderr."""

import sys
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console, Group
from rich.table import Table


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Group:
    """A title and a table. Columns of numbers, told by their last row, stand to the right."""
    made, last = Table(), []
    for column in columns:
        made.add_column(column)
    for row in rows:
        last = list(row)
        made.add_row(*last)
    for made_column, cell in zip(made.columns, last, strict=False):
        made_column.justify = "right" if cell[:1].isdigit() else "left"
    # A table's own title would be wrapped to the table's width.
    return Group(title, made)


def dropped_table(dropped: dict[str, int]) -> Group:
    """Every reason for dropping a record, with its meaning and its count."""
    from egpo.data import DROP_REASONS

    rows = [(reason, DROP_REASONS.get(reason, ""), f"{count:,}") for reason, count in sorted(dropped.items())]
    return table("dropped", ("reason", "meaning", "records"), rows)


def counted(what: str) -> Callable[[Iterable[Any]], Iterable[Any]]:
    """Wraps a stream so that a terminal sees it move; nothing is shown elsewhere."""

    def watch(stream: Iterable[Any]) -> Iterable[Any]:
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} {task.description}"), TimeElapsedColumn())
        with Progress(
            *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
        ) as progress:
            yield from progress.track(stream, description=what, total=None)

    return watch
