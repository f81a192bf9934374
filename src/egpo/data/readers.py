"""Reads records from JSON, JSON lines and parquet files, one at a time, so that a file may be larger than memory.

Each record has the name of its file and its line or row number, for error messages.
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
from egpo.fingerprints import unsealed_line

SUFFIXES = (".json", ".jsonl", ".ndjson", ".parquet")
_PARQUET_MAGIC = b"PAR1"
_PARQUET_BATCH = 1024


@dataclass(frozen=True)
class Record:
    """One object of a source file. `where` is the file and the line or row, for error messages."""

    value: dict[str, Any]
    where: str


def read_records(path: Path) -> Iterator[Record]:
    """Return an iterator over the records of a file. Raise InputError if the file has none.

    The format is detected from the suffix and the content. A JSON file may contain JSON lines, an array of objects, an
    object whose values are the records, or a single conversation (an object whose first value has a `role`).
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
        raise InputError(
            "this is not a file", where=str(path), fix=f"give a file with the suffix {' or '.join(SUFFIXES)}"
        )
    if not os.access(path, os.R_OK):
        raise InputError("no permission to read the file", where=str(path), fix="change the file's permissions")


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        magic = file.read(4)
    if path.suffix == ".parquet" and magic != _PARQUET_MAGIC:
        what = "the file has the suffix .parquet, but is not a parquet file"
        raise InputError(what, where=str(path), fix="rename the file, or write it again as parquet")
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
            f"the parquet file cannot be read ({str(error).splitlines()[0]})",
            where=str(path),
            fix="write the file again",
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
        "the file is neither JSON, JSON lines nor parquet" if first else "the file is empty",
        where=str(path),
        fix=f"give a file with the suffix {' or '.join(SUFFIXES)}",
    )


def _head(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(CHUNK_CHARS).removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="replace")


def _is_lines(path: Path) -> bool:
    """Return whether a `.json` file contains JSON lines: the first line is a whole object, and another one follows."""
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
        what = f"the record is not valid JSON ({error})"
        raise InputError(what, where=where, fix="give each turn a different number") from error


def _require_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError("the line is not a JSON object", where=where, fix="write one JSON object per line")
    return value


CHUNK_CHARS = 1 << 20
MAX_VALUE_CHARS = 1 << 28
"""Maximum length of one record, in characters. Without it, a missing quote would load the rest of the file."""

_TOKEN_CHARS = 16
"""Maximum length of an incomplete token (`tru`, `-`, `\\u12`). An error so close to the end of the buffer may only mean
that more text must be read."""


def decode(text: str, where: str) -> Any:
    """Decode a text that is one JSON value. Raise InputError at the place `where` if it is not."""
    try:
        return UNBOUNDED.decode(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"the record is not valid JSON ({_reason(error)})",
            where=where,
            fix="correct or remove the record, and check that the file is complete",
        ) from error


def iter_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that are not blank, with their numbers, counted from 1."""
    with path.open("rb") as file:
        for number in range(1, 1 << 62):
            line = file.readline(MAX_VALUE_CHARS)
            if not line:
                return
            where = f"{path}, line {number}"
            try:
                line = unsealed_line(line)
            except ValueError as error:
                raise InputError(str(error), where=where, fix="restore the file, or remove the line") from error
            text = _utf8(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, where)
            if text.strip():
                yield number, text


def iter_array(path: Path) -> Iterator[Any]:
    """Yield the elements of a file that contains one JSON array, without loading the whole file."""
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
    """Yield the keys and values of a file that contains one JSON object, without loading the whole file."""
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
        what = f"the text is not UTF-8 ({error.reason})"
        raise InputError(what, where=where, fix="convert the file to UTF-8") from error


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.rstrip(' at')}, character {error.pos + 1}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


class _Cursor:
    """A parser of a JSON file that keeps only a part of it (the buffer) in memory."""

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
            self._fail("there is text after the end of the JSON value")

    def member(self) -> tuple[str, Any]:
        if self.peek() != '"':
            self._fail("expected a quoted key")
        key = self._decode()
        self.expect(":")
        return key, self.value()

    def value(self) -> Any:
        """Decode the next record, which must be a JSON object.

        Numbers are not supported: if the buffer ended within a number, its end could not be recognised.
        """
        self._records += 1
        if self.peek() != "{":
            self._fail("the record is not a JSON object")
        return self._decode()

    def _decode(self) -> Any:
        while True:
            try:
                value, self._at = UNBOUNDED.raw_decode(self._buffer, self._at)
                return value
            except json.JSONDecodeError as error:
                # The buffer is doubled each time, so that the time for a long record grows linearly with its length.
                if not (self._cut_short(error) and self._read_on(max(CHUNK_CHARS, len(self._buffer)))):
                    self._fail(f"the record is not valid JSON ({error.msg.rstrip(' at')})")
            except (ValueError, RecursionError) as error:
                self._fail(f"the record is not valid JSON ({_reason(error)})")

    def _cut_short(self, error: json.JSONDecodeError) -> bool:
        if len(self._buffer) - self._at > MAX_VALUE_CHARS:
            return False
        return error.msg.startswith("Unterminated string") or error.pos >= len(self._buffer) - _TOKEN_CHARS

    def _read_on(self, chars: int) -> bool:
        try:
            chunk = "" if self._ended else self._file.read(chars)
        except UnicodeDecodeError as error:
            self._fail(f"the text is not UTF-8 ({error.reason})")
        self._ended = not chunk
        self._buffer, self._at = self._buffer[self._at :] + chunk, 0
        return bool(chunk)

    def _fail(self, what: str) -> NoReturn:
        raise InputError(
            what,
            where=f"{self._path}, record {max(self._records, 1)}",
            fix="correct the file, and check that it is complete",
        )
