"""Records out of JSON, JSON lines and parquet files, one at a time, each with its place for the error message."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from egpo.data.json_stream import CHUNK_CHARS, decode, iter_array, iter_lines, iter_members
from egpo.data.json_values import unique_keys
from egpo.errors import InputError

SUFFIXES = (".json", ".jsonl", ".ndjson", ".parquet")
_PARQUET_MAGIC = b"PAR1"
_PARQUET_BATCH = 1024


@dataclass(frozen=True)
class Record:
    """One object of a source file; `where` names the file and the line or row."""

    value: dict[str, Any]
    where: str


def read_records(path: Path) -> Iterator[Record]:
    """Every record of a file, by its content and not only its suffix. An empty file is an error.

    JSON may be lines, one array of objects, one object whose values are the records, or one conversation
    (an object whose first value is a turn, that is, has a `role`).
    """
    _require_file(path)
    records = _parquet(path) if _is_parquet(path) else _json(path)
    first = next(records, None)
    if first is None:
        raise InputError("the file holds no record", where=str(path), fix="give a file with at least one row")
    return chain([first], records)


def _require_file(path: Path) -> None:
    if not path.exists():
        raise InputError("no such file", where=str(path), fix="check the path")
    if not path.is_file():
        raise InputError("not a file", where=str(path), fix=f"give one of {', '.join(SUFFIXES)}")
    if not os.access(path, os.R_OK):
        raise InputError("may not be read", where=str(path), fix="mend its permissions")


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        magic = file.read(4)
    if path.suffix == ".parquet" and magic != _PARQUET_MAGIC:
        raise InputError(
            "not a parquet file in spite of its name", where=str(path), fix="rename it, or write it afresh"
        )
    return magic == _PARQUET_MAGIC


def _parquet(path: Path) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            row = 0
            for batch in file.iter_batches(batch_size=_PARQUET_BATCH):
                for value in batch.to_pylist():
                    yield Record(value, f"{path}, row {row}")
                    row += 1
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"not a readable parquet file ({str(error).splitlines()[0]})", where=str(path), fix="write it afresh"
        ) from error


def _json(path: Path) -> Iterator[Record]:
    if path.suffix in (".jsonl", ".ndjson") or _is_lines(path):
        return _lines(path)
    first = _head(path).lstrip()[:1]
    if first == "[":
        return (Record(value, f"{path}, record {n}") for n, value in enumerate(iter_array(path), 1))
    if first == "{":
        return _members(path)
    raise InputError(
        "neither JSON, JSON lines nor parquet" if first else "the file is empty",
        where=str(path),
        fix=f"give one of {', '.join(SUFFIXES)}",
    )


def _head(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(CHUNK_CHARS).removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="replace")


def _is_lines(path: Path) -> bool:
    """Many `.json` files hold JSON lines: the first line is then a whole object, and another follows it."""
    head = _head(path).lstrip()
    line, newline, rest = head.partition("\n")
    if not (head.startswith("{") and newline and rest.lstrip().startswith("{")):
        return False
    return line.rstrip().endswith("}")


def _lines(path: Path) -> Iterator[Record]:
    for number, line in iter_lines(path):
        where = f"{path}, line {number}"
        yield Record(_require_object(decode(line, where), where), where)


def _members(path: Path) -> Iterator[Record]:
    members = iter_members(path)
    first = next(members, None)
    if first is None:
        return
    if "role" in first[1]:
        yield _one_conversation(list(chain([first], members)), f"{path}, record 1")
        return
    for key, value in chain([first], members):
        yield Record(value, f"{path}, record `{key}`")


def _one_conversation(members: list[tuple[str, Any]], where: str) -> Record:
    try:
        return Record(unique_keys(members), where)
    except ValueError as error:
        raise InputError(f"not valid JSON ({error})", where=where, fix="give each turn its own number") from error


def _require_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError("not a JSON object", where=where, fix="each line holds one object")
    return value
