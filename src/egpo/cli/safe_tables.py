"""Tables whose cells may hold anything that a model wrote."""

from collections.abc import Iterable, Sequence

from rich import box
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
