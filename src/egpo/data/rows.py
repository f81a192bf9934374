"""Rows of verl parquet files: the class `Row`, its arrow schema, and reading and writing of files."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar, overload

import pyarrow as pa
import pyarrow.parquet as pq

from egpo.data.readers import read_records
from egpo.errors import InputError

Message = dict[str, str]
Extra = Mapping[str, str | int]

RESERVED = ("split", "index")
"""Keys of the column `extra_info` that `Row.to_record` sets, and that `Row.extra` must not contain."""


@dataclass(frozen=True)
class Row:
    """One row of a verl parquet file: a problem.

    `ground_truth`: the text that responses are judged by; JSON if it has several parts, so that all sources have the
    same schema. `ability`: the kind of problem, such as `math`. `extra`: further values, which are written to the
    column `extra_info`; all rows of a file must have the same keys in it. `agent`: verl's agent loop for the row, in
    the column `agent_name`; without it there is no such column.
    """

    data_source: str
    prompt: tuple[Message, ...]
    ability: str
    ground_truth: str
    extra: Extra = field(default_factory=dict)
    agent: str = ""

    def to_record(self, split: str, index: int) -> dict[str, Any]:
        """Return the row with verl's columns. `index` is its number in the split, from 0."""
        return {
            "data_source": self.data_source,
            "prompt": list(self.prompt),
            "ability": self.ability,
            "reward_model": {"style": "rule", "ground_truth": self.ground_truth},
            "extra_info": {"split": split, "index": index, **self.extra},
            **({"agent_name": self.agent} if self.agent else {}),
        }


@dataclass(frozen=True)
class Dropped:
    """The result for a record that is not converted to a row. `reason` is a key of `DROP_REASONS`."""

    reason: str


def schema_of(row: Row) -> pa.Schema:
    """Return the arrow schema of a file of rows that have the same `extra` keys as this one."""
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    extra = [(key, pa.int64() if isinstance(value, int) else pa.string()) for key, value in row.extra.items()]
    return pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(message)),
            ("ability", pa.string()),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
            ("extra_info", pa.struct([("split", pa.string()), ("index", pa.int64()), *extra])),
            *([("agent_name", pa.string())] if row.agent else []),
        ]
    )


def parse_row(value: Mapping[str, Any], where: str) -> Row:
    """Parse a row of any verl parquet file. A ground truth or extra value that is not plain becomes JSON text.

    Raise InputError at the place `where` if the prompt or the ground truth is missing.
    """
    reward_model = value.get("reward_model")
    if not isinstance(reward_model, Mapping) or reward_model.get("ground_truth") is None:
        raise InputError(
            "the row has no `reward_model.ground_truth`", where=where, fix="prepare the file again, or drop the row"
        )
    extra = {k: _scalar(v) for k, v in (value.get("extra_info") or {}).items() if k not in RESERVED and v is not None}
    return Row(
        data_source=str(value.get("data_source") or ""),
        prompt=parse_messages(value.get("prompt"), where),
        ability=str(value.get("ability") or ""),
        ground_truth=as_text(reward_model["ground_truth"]),
        extra=extra,
    )


def parse_messages(value: object, where: str) -> tuple[Message, ...]:
    """Return the messages of a prompt. Raise InputError unless it is a list of {role, content}, both text."""
    fine = isinstance(value, list) and value and all(_is_message(message) for message in value)
    if not fine:
        raise InputError(
            "`prompt` is not a list of {role, content} messages", where=where, fix="see docs/data.md for the row format"
        )
    assert isinstance(value, list)
    return tuple({"role": message["role"], "content": message["content"]} for message in value)


def as_text(value: object) -> str:
    """Return a text unchanged, and any other value as JSON text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _scalar(value: object) -> str | int:
    # bool is an int in Python but not in arrow, so it becomes the JSON text `true` or `false`.
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return as_text(value)


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


T = TypeVar("T")

ROW_GROUP = 1024
SPLITS = ("train", "test")


def write_parquet(path: Path, rows: Iterable[Row], split: str) -> int:
    """Write the rows of one split to a parquet file, and return their number.

    Raise InputError if there are no rows, or if their `extra` keys differ.
    """
    stream = iter(rows)
    first = next(stream, None)
    if first is None:
        raise InputError("the split has no rows", where=f"split `{split}`", fix="give more data, or request fewer rows")
    if set(first.extra) & set(RESERVED):
        raise InputError(f"`extra` must not contain {RESERVED}", where=f"split `{split}`", fix="rename the key")
    schema, count = schema_of(first), 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in _batches(chain([first], stream)):
            _require_shape(batch, _shape(first), f"split `{split}`", count)
            records = [row.to_record(split, count + i) for i, row in enumerate(batch)]
            writer.write_table(pa.Table.from_pylist(records, schema=schema), row_group_size=ROW_GROUP)
            count += len(batch)
    return count


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while batch := list(islice(rows, ROW_GROUP)):
        yield batch


def _shape(row: Row) -> list[tuple[str, bool]]:
    return [(key, isinstance(value, int)) for key, value in row.extra.items()]


def _require_shape(rows: list[Row], shape: list[tuple[str, bool]], where: str, start: int) -> None:
    # Without this check, arrow would write null for a missing key and ignore an additional one.
    for i, row in enumerate(rows):
        if _shape(row) != shape:
            raise InputError(
                f"`extra` has the keys {sorted(row.extra)}, which differ from those of the first row",
                where=f"{where}, row {start + i}",
                fix="all rows of a file need the same keys: write each source to its own directory",
            )


def read_rows(path: Path) -> Iterator[Row]:
    """Yield every row of a verl parquet file, one at a time."""
    return (parse_row(record.value, record.where) for record in read_records(path))


class ParquetRows(Sequence[T]):
    """The first `limit` rows of a parquet file as a sequence (None: all rows).

    The file is held in memory as arrow columns. `make` converts a row each time it is accessed.
    """

    def __init__(self, path: Path, make: Callable[[Row], T], limit: int | None = None) -> None:
        next(iter(read_records(path)))  # raises a clear error if the file is empty or not parquet
        self._path, self._make = path, make
        self._table = pq.read_table(path)[:limit]

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        value: dict[str, Any] = self._table.slice(place, 1).to_pylist()[0]
        return self._make(parse_row(value, f"{self._path}, row {place}"))
