"""The rows of a user's dataset: where they are read from, templates over their columns, and the held-out test rows."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

from egpo.data.readers import SUFFIXES, Record, read_records
from egpo.data.sources import is_hub_name, open_source, read_hub
from egpo.errors import InputError, nearest, shortened
from egpo.rewards.plain_values import is_missing

WHERE = "task dataset"
Rows = str | Path | Iterable[Mapping[str, Any]]
"""A path or a name on the hub, or the rows themselves: a list of dicts, a pandas DataFrame, a `datasets.Dataset`."""


def is_hub(source: object) -> bool:
    """Return whether the source is a dataset on the hub: no such path exists, and it has the form `owner/name`."""
    path = Path(source).expanduser() if isinstance(source, str) else None
    return path is not None and not path.exists() and path.suffix not in SUFFIXES and is_hub_name(str(source))


def read_all(source: Rows, split: str, setting: str) -> list[Record]:
    """Return all rows of a source. `split` is the split of a hub dataset, or the file in a folder.

    InputError, with the name of the file and the line, if a row cannot be read, and if there are no rows.
    """
    if not isinstance(source, str | Path):
        return _given(source, setting)
    if is_hub(source):
        records = list(read_hub(str(source), split, None))
    else:
        path = Path(source).expanduser()
        records = list(open_source(str(path)).readers[split]() if path.is_dir() else read_records(path))
    if not records:
        raise InputError("there are no rows", where=f"{source} ({split})", fix="give a source with at least one row")
    return records


def _given(source: Iterable[Mapping[str, Any]], setting: str) -> list[Record]:
    """Return rows that were given as Python objects."""
    if isinstance(source, Mapping) or not isinstance(source, Iterable):
        what = f"`{setting}` is {type(source).__name__}, not a list of rows"
        raise InputError(what, where=WHERE, fix='give a list of dicts, or one split, as in data["train"]')
    # A DataFrame iterates over the names of its columns.
    rows: Iterable[Any] = source.to_dict("records") if hasattr(source, "iterrows") else source  # type: ignore[attr-defined]
    records = [Record(row, f"`{setting}`, row {number}") for number, row in enumerate(rows)]
    for record in records:
        if not isinstance(record.value, Mapping):
            what = f"the row is {type(record.value).__name__}, not a dict"
            raise InputError(what, where=record.where, fix="give each row as a dict of its columns")
    if not records:
        raise InputError("there are no rows", where=f"`{setting}`", fix="give at least one row")
    return records


def value_at(record: Record, column: str) -> Any:
    """Return the value of a column, where `a.b` may be the field `b` of the column `a`. InputError if it is missing."""
    value: Any = record.value
    for name in [column] if column in record.value else column.split("."):
        if not isinstance(value, Mapping) or name not in value:
            fix = nearest(column, map(str, record.value)) if record.value else "give rows with columns"
            raise InputError(f"the row has no column `{column}`", where=record.where, fix=fix)
        value = value[name]
    if is_missing(value):
        fix = "fill in the value, or remove the row"
        raise InputError(f"the column `{column}` is empty", where=record.where, fix=fix)
    return value


def text_of_value(value: Any) -> str:
    """Return a text unchanged, and any other value as JSON text; dates and the like as Python prints them."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


@dataclass(frozen=True)
class Template:
    """A text with columns in braces, as in `Add {a} and {b}.`; `{{` and `}}` are braces of the text itself.

    `parts` are pairs of a literal text and the column after it, "" if there is none.
    """

    parts: tuple[tuple[str, str], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column for _, column in self.parts if column)

    def render(self, record: Record) -> str:
        filled = ((text, text_of_value(value_at(record, column)) if column else "") for text, column in self.parts)
        return "".join(part for pair in filled for part in pair)


def parse_template(text: object, setting: str) -> Template:
    """Parse a template. InputError on a single brace, and on anything but a column's name between braces."""
    where, both = f"{WHERE}, {setting}", "write {{ and }} for braces that are part of the text"
    if not isinstance(text, str) or not text.strip():
        fix = 'give a text, as in "What is {a} + {b}?"'
        raise InputError(f"{setting}={text!r:.40} is not a template", where=WHERE, fix=fix)
    parts = []
    try:
        for literal, column, spec, conversion in Formatter().parse(text):
            if column == "" or spec or conversion:
                shown = f"{{{column}{'!' + conversion if conversion else ''}{':' + spec if spec else ''}}}"
                what = f"`{shortened(shown)[1:-1]}` is not a column's name in braces"
                raise InputError(what, where=where, fix=f"write {{column}} without a format; {both}")
            parts.append((literal, column or ""))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the template has a single brace ({error})", where=where, fix=both) from error
    return Template(tuple(parts))


def check_test(test: object, source: object) -> None:
    """Raise InputError unless `test` is a number of rows, a fraction, a file, a split of a hub dataset, or rows."""
    if isinstance(test, bool) or (isinstance(test, int | float) and not _is_size(test)):
        fix = "give a fraction between 0 and 1, a whole number of rows, a file, or a split of a dataset on the hub"
        raise InputError(f"test={test!r} is not allowed", where=WHERE, fix=fix)
    if test is not None and isinstance(source, str | Path) and Path(source).expanduser().is_dir():
        what = f"`test` is set, and the folder {source} has a test file"
        raise InputError(what, where=WHERE, fix="leave out `test`, or give the training file as `source`")


def _is_size(test: int | float) -> bool:
    return test >= 1 if isinstance(test, int) else 0 < test < 1


def held_out(keys: Sequence[str], test: int | float, seed: int) -> set[str]:
    """Return the keys of the test problems: the n keys whose hash together with the seed is smallest.

    The choice depends only on keys and seed, not on the order of the rows. InputError if none is left for training.
    """
    count = test if isinstance(test, int) else math.ceil(test * len(keys))
    if count >= len(keys):
        what = f"test={test} leaves none of {len(keys)} different problems for training"
        raise InputError(what, where=WHERE, fix="hold out fewer rows, or give more")
    return set(sorted(keys, key=lambda key: hashlib.sha256(f"{seed}:{key}".encode()).digest())[:count])
