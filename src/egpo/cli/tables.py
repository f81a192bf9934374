"""Tables for a terminal. Cells may hold text that a model wrote, so control characters are escaped."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text


def printable(text: str) -> str:
    """Return the text as one line. Control characters and other characters that cannot be displayed are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def cell(text: str) -> str:
    """Return the text so that a rich console prints it literally: without markup, and with control characters escaped.

    The console needs emoji=False, because rich otherwise replaces `:name:` by an emoji.
    """
    return escape(printable(text))


def excerpt(text: str, length: int = 80) -> str:
    """Return the last `length` characters of a response, where its answer is."""
    return text if len(text) <= length else "…" + text[-length:]


def safe_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], num_text: int = 1) -> Table:
    """Return a table that is safe for text that a model wrote.

    The first `num_text` columns are aligned to the left, the others, which hold numbers, to the right. There are no
    lines between columns, so that seven columns fit on a terminal of 80 characters. Long cells are wrapped.
    """
    heading = Text(printable(title), "table.title") if title else None
    made = Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for position, column in enumerate(columns):
        made.add_column(Text(printable(column)), justify="left" if position < num_text else "right", overflow="fold")
    for row in rows:
        made.add_row(*(Text(printable(text)) for text in row))
    return made


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Group:
    """Return a title and a table. A column whose last cell starts with a digit is aligned to the right."""
    made, last = Table(), []
    for column in columns:
        made.add_column(column)
    for row in rows:
        last = list(row)
        made.add_row(*last)
    for made_column, cell in zip(made.columns, last, strict=False):
        made_column.justify = "right" if cell[:1].isdigit() else "left"
    # Printed separately, because rich would wrap a table's title to the table's width.
    return Group(title, made)


def dropped_table(dropped: dict[str, int]) -> Group:
    """Return a table of the reasons for which records were dropped, with meaning and count."""
    from egpo.data import DROP_REASONS

    rows = [(reason, DROP_REASONS.get(reason, ""), f"{count:,}") for reason, count in sorted(dropped.items())]
    return table("dropped", ("reason", "meaning", "records"), rows)
