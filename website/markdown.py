"""Tables in Markdown that GitHub and MkDocs render alike."""

import re
from collections.abc import Iterable, Sequence


def cell(text: str) -> str:
    """Return the text as the content of a table cell: one line, bars escaped, `<` escaped outside of code."""
    line = " ".join(text.split()).replace("|", "\\|")
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(part if i % 2 else part.replace("<", "&lt;") for i, part in enumerate(parts))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose cells are escaped by `cell`."""
    lines = [head, ["---"] * len(head), *([cell(one) for one in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
