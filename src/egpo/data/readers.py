"""Reads records from JSON, JSON lines and parquet files, one at a time, so that a file may be larger than memory.

Each record carries its place (file, and line or row) for error messages.
"""

import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from egpo.data.calls import UNBOUNDED, unique_keys
from egpo.errors import InputError

SUFFIXES = (".json", ".jsonl", ".ndjson", ".parquet")
_PARQUET_MAGIC = b"PAR1"
_PARQUET_BATCH = 1024


@dataclass(frozen=True)
class Record:
    """One object of a source file. `where` is its place, file and line or row, for error messages."""

    value: dict[str, Any]
    where: str


def read_records(path: Path) -> Iterator[Record]:
    """Yield every record of a file. The format is detected from the content as well as the suffix. An empty file is an
    InputError.

    JSON may be JSON lines, one array of objects, one object whose values are the records, or one conversation (an
    object whose first value has a `role`).
    """
    _require_file(path)
    records = _parquet(path) if _is_parquet(path) else _json(path)
    first = next(records, None)
    if first is None:
        raise InputError("the file contains no record", where=str(path), fix="give a file with at least one record")
    return chain([first], records)


def _require_file(path: Path) -> None:
    if not path.exists():
        raise InputError("no such file", where=str(path), fix="check the path")
    if not path.is_file():
        raise InputError("not a file", where=str(path), fix=f"give one of {', '.join(SUFFIXES)}")
    if not os.access(path, os.R_OK):
        raise InputError("no permission to read it", where=str(path), fix="change its permissions")


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        magic = file.read(4)
    if path.suffix == ".parquet" and magic != _PARQUET_MAGIC:
        raise InputError("named .parquet but not a parquet file", where=str(path), fix="rename it, or write it again")
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
            f"not a readable parquet file ({str(error).splitlines()[0]})", where=str(path), fix="write it again"
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
    """Return whether a `.json` file contains JSON lines: its first line is a complete object, and another follows."""
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
        raise InputError(f"not valid JSON ({error})", where=where, fix="give each turn a different number") from error


def _require_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError("not a JSON object", where=where, fix="write one JSON object per line")
    return value


CHUNK_CHARS = 1 << 20
MAX_VALUE_CHARS = 1 << 28
"""Maximum length of one record, in characters. Without a limit, a missing quote would read the rest of the file."""

_TOKEN_CHARS = 16
"""An error within this many characters of the end of the buffer may be an incomplete token (`tru`, `-`, `\\u12`)."""


def decode(text: str, where: str) -> Any:
    """Decode one complete JSON value. Raises InputError with its place otherwise."""
    try:
        return UNBOUNDED.decode(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"not valid JSON ({_reason(error)})",
            where=where,
            fix="correct or remove this record; is the file truncated?",
        ) from error


def iter_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers, counted from 1."""
    with path.open("rb") as file:
        for number in range(1, 1 << 62):
            line = file.readline(MAX_VALUE_CHARS)
            if not line:
                return
            text = _utf8(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, f"{path}, line {number}")
            if text.strip():
                yield number, text


def iter_array(path: Path) -> Iterator[Any]:
    """Yield the elements of one top-level JSON array."""
    with _open(path) as file:
        cursor = _Cursor(file, path)
        cursor.expect("[")
        if cursor.peek() != "]":
            yield cursor.value()
            while cursor.peek() == ",":
                cursor.expect(",")
                yield cursor.value()
        cursor.expect("]")
        cursor.expect_end()


def iter_members(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the members of one top-level JSON object."""
    with _open(path) as file:
        cursor = _Cursor(file, path)
        cursor.expect("{")
        if cursor.peek() != "}":
            yield cursor.member()
            while cursor.peek() == ",":
                cursor.expect(",")
                yield cursor.member()
        cursor.expect("}")
        cursor.expect_end()


def _open(path: Path) -> io.TextIOWrapper:
    return path.open(encoding="utf-8-sig", newline="")


def _utf8(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 ({error.reason})", where=where, fix="convert the file to UTF-8") from error


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.rstrip(' at')}, character {error.pos + 1}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


class _Cursor:
    """A position in a JSON file of which only a window is in memory."""

    def __init__(self, file: io.TextIOWrapper, path: Path) -> None:
        self._file, self._path = file, path
        self._buffer, self._at, self._records, self._ended = "", 0, 0, False

    def peek(self) -> str:
        """Return the next character that is not white space, without consuming it; "" at the end of the file."""
        while True:
            while self._at < len(self._buffer):
                if self._buffer[self._at] not in " \t\r\n":
                    return self._buffer[self._at]
                self._at += 1
            if not self._read_on(CHUNK_CHARS):
                return ""

    def expect(self, char: str) -> None:
        found = self.peek()
        if found != char:
            self._fail(f"expected `{char}`, found {f'`{found}`' if found else 'the end of the file'}")
        self._at += 1

    def expect_end(self) -> None:
        if self.peek():
            self._fail("text after the end of the JSON value")

    def member(self) -> tuple[str, Any]:
        if self.peek() != '"':
            self._fail("expected a quoted key")
        key = self._decode()
        self.expect(":")
        return key, self.value()

    def value(self) -> Any:
        """Decode the next record. It must be an object: the end of a number at the end of the window is unknown."""
        self._records += 1
        if self.peek() != "{":
            self._fail("not a JSON object")
        return self._decode()

    def _decode(self) -> Any:
        while True:
            try:
                value, self._at = UNBOUNDED.raw_decode(self._buffer, self._at)
                return value
            except json.JSONDecodeError as error:
                # Doubling the window each time keeps the total time for a long record linear.
                if not (self._cut_short(error) and self._read_on(max(CHUNK_CHARS, len(self._buffer)))):
                    self._fail(f"not valid JSON ({error.msg.rstrip(' at')})")
            except (ValueError, RecursionError) as error:
                self._fail(f"not valid JSON ({_reason(error)})")

    def _cut_short(self, error: json.JSONDecodeError) -> bool:
        if len(self._buffer) - self._at > MAX_VALUE_CHARS:
            return False
        return error.msg.startswith("Unterminated string") or error.pos >= len(self._buffer) - _TOKEN_CHARS

    def _read_on(self, chars: int) -> bool:
        try:
            chunk = "" if self._ended else self._file.read(chars)
        except UnicodeDecodeError as error:
            self._fail(f"not UTF-8 ({error.reason})")
        self._ended = not chunk
        self._buffer, self._at = self._buffer[self._at :] + chunk, 0
        return bool(chunk)

    def _fail(self, what: str) -> NoReturn:
        raise InputError(
            what, where=f"{self._path}, record {max(self._records, 1)}", fix="correct the file; is it truncated?"
        )
