"""Tables whose cells may hold anything that a model wrote.

What `prepare` and `convert` print: tables on stdout, progress on stderr.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text


def printable(text: str) -> str:
    """One line; what a terminal would obey or could not show is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def cell(text: str) -> str:
    """The same, and no markup. For a console without emoji: rich would make one of a name between colons."""
    return escape(printable(text))


def excerpt(text: str, length: int = 80) -> str:
    """The end of a response, where answers stand."""
    return text if len(text) <= length else "…" + text[-length:]


def safe_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], num_text: int = 1) -> Table:
    """The first `num_text` columns are text, the others numbers. Without lines between columns: a terminal of 80 holds
    seven of them, and what is too wide goes on in the next line."""
    heading = Text(printable(title), "table.title") if title else None
    made = Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for position, column in enumerate(columns):
        made.add_column(Text(printable(column)), justify="left" if position < num_text else "right", overflow="fold")
    for row in rows:
        made.add_row(*(Text(printable(text)) for text in row))
    return made


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
