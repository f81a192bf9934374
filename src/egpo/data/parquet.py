"""Rows to parquet and back, by row groups."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar, overload

import pyarrow as pa
import pyarrow.parquet as pq

from egpo.data.readers import read_records
from egpo.data.rows import RESERVED, Row, parse_row, schema_of
from egpo.errors import InputError

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
