"""One row of a verl parquet file: what every preparation writes and every task reads.

Rows to parquet and back, by row groups.
"""

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
"""Keys of `extra_info` that the writer sets itself."""


@dataclass(frozen=True)
class Row:
    """A prompt, what its answer is judged by, and what else is known of it.

    `ground_truth` is always text: JSON where it has parts, so that every source has one schema.
    `extra` goes into `extra_info` beside `split` and `index`; every row of a file has the same keys in it.
    """

    data_source: str
    prompt: tuple[Message, ...]
    ability: str
    ground_truth: str
    extra: Extra = field(default_factory=dict)

    def named(self, split: str, index: int) -> dict[str, Any]:
        """The row as verl reads it, at its place in a split."""
        return {
            "data_source": self.data_source,
            "prompt": list(self.prompt),
            "ability": self.ability,
            "reward_model": {"style": "rule", "ground_truth": self.ground_truth},
            "extra_info": {"split": split, "index": index, **self.extra},
        }


@dataclass(frozen=True)
class Dropped:
    """A record that does not become a row, and why: counted, never silent."""

    reason: str


def schema_of(row: Row) -> pa.Schema:
    """The arrow schema that this row, and so its whole file, has."""
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    extra = [(key, pa.int64() if isinstance(value, int) else pa.string()) for key, value in row.extra.items()]
    return pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(message)),
            ("ability", pa.string()),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
            ("extra_info", pa.struct([("split", pa.string()), ("index", pa.int64()), *extra])),
        ]
    )


def parse_row(value: Mapping[str, Any], where: str) -> Row:
    """A row of any verl parquet file, ours or not: nested ground truths and extras become JSON text."""
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
    """A list of {role, content} with text in both, or an error that names the row."""
    fine = isinstance(value, list) and value and all(_is_message(message) for message in value)
    if not fine:
        raise InputError(
            "`prompt` is not a list of {role, content} messages", where=where, fix="see docs/data.md for the row format"
        )
    assert isinstance(value, list)
    return tuple({"role": message["role"], "content": message["content"]} for message in value)


def as_text(value: object) -> str:
    """Text as it is; anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _scalar(value: object) -> str | int:
    # bool is an int to Python and not to arrow: JSON says `true`.
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return as_text(value)


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


T = TypeVar("T")

ROW_GROUP = 1024
SPLITS = ("train", "test")


def write_parquet(path: Path, rows: Iterable[Row], split: str) -> int:
    """Writes one split and returns its number of rows. No row at all, or rows of two schemas: an error."""
    stream = iter(rows)
    first = next(stream, None)
    if first is None:
        raise InputError("no row is left", where=f"split `{split}`", fix="give more data, or ask for fewer rows")
    if set(first.extra) & set(RESERVED):
        raise InputError(f"`extra` may not hold {RESERVED}", where=f"split `{split}`", fix="rename the key")
    schema, count = schema_of(first), 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in _batches(chain([first], stream)):
            _require_shape(batch, _shape(first), f"split `{split}`", count)
            named = [row.named(split, count + i) for i, row in enumerate(batch)]
            writer.write_table(pa.Table.from_pylist(named, schema=schema), row_group_size=ROW_GROUP)
            count += len(batch)
    return count


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while batch := list(islice(rows, ROW_GROUP)):
        yield batch


def _shape(row: Row) -> list[tuple[str, bool]]:
    return [(key, isinstance(value, int)) for key, value in row.extra.items()]


def _require_shape(rows: list[Row], shape: list[tuple[str, bool]], where: str, start: int) -> None:
    # arrow fills a missing key with null and ignores one too many: both would be silent.
    for i, row in enumerate(rows):
        if _shape(row) != shape:
            raise InputError(
                f"its `extra` has keys {sorted(row.extra)}, unlike the first row's",
                where=f"{where}, row {start + i}",
                fix="one file, one schema: write the sources to directories of their own",
            )


def read_rows(path: Path) -> Iterator[Row]:
    """Every row of a verl parquet file, streaming."""
    return (parse_row(record.value, record.where) for record in read_records(path))


class Stored(Sequence[T]):
    """The first `limit` rows of a parquet file, each made into a T when asked for: the rest is arrow's columns."""

    def __init__(self, path: Path, make: Callable[[Row], T], limit: int | None = None) -> None:
        next(iter(read_records(path)))  # the clear errors on what is no parquet, or empty
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
