"""JSON read one record at a time: a file larger than memory is no matter."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from egpo.data.json_values import STRICT
from egpo.errors import InputError

CHUNK_CHARS = 1 << 20
MAX_VALUE_CHARS = 1 << 28
"""The longest single record, in characters: beyond it a missing quote would swallow the rest of the file."""

_TOKEN_CHARS = 16
"""An error this near to the end of the buffer may be a token cut in two (`tru`, `-`, `\\u12`)."""


def decode(text: str, where: str) -> Any:
    """One whole JSON value, or an error that names its place."""
    try:
        return STRICT.decode(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"not valid JSON ({_say(error)})", where=where, fix="the file may be truncated: mend or remove this record"
        ) from error


def iter_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line numbers from 1 and the lines that are not blank."""
    with path.open("rb") as file:
        for number in range(1, 1 << 62):
            line = file.readline(MAX_VALUE_CHARS)
            if not line:
                return
            text = _utf8(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, f"{path}, line {number}")
            if text.strip():
                yield number, text


def iter_array(path: Path) -> Iterator[Any]:
    """The elements of one top-level JSON array."""
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
    """The members of one top-level JSON object."""
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


def _say(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.rstrip(' at')}, character {error.pos + 1}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


class _Cursor:
    """A place in a JSON text of which only a window is in memory."""

    def __init__(self, file: io.TextIOWrapper, path: Path) -> None:
        self._file, self._path = file, path
        self._buffer, self._at, self._records, self._ended = "", 0, 0, False

    def peek(self) -> str:
        """The next character that is not white space, unread; "" at the end."""
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
            self._fail(f"`{char}` expected, {f'`{found}`' if found else 'the end of the file'} found")
        self._at += 1

    def expect_end(self) -> None:
        if self.peek():
            self._fail("more text after the end of the JSON value")

    def member(self) -> tuple[str, Any]:
        if self.peek() != '"':
            self._fail("a quoted key expected")
        key = self._decode()
        self.expect(":")
        return key, self.value()

    def value(self) -> Any:
        """The next record, which must be an object: the end of a bare number cannot be told in a window."""
        self._records += 1
        if self.peek() != "{":
            self._fail("not a JSON object")
        return self._decode()

    def _decode(self) -> Any:
        while True:
            try:
                value, self._at = STRICT.raw_decode(self._buffer, self._at)
                return value
            except json.JSONDecodeError as error:
                # Reading twice as much each time keeps a long record linear.
                if not (self._cut_short(error) and self._read_on(max(CHUNK_CHARS, len(self._buffer)))):
                    self._fail(f"not valid JSON ({error.msg.rstrip(' at')})")
            except (ValueError, RecursionError) as error:
                self._fail(f"not valid JSON ({_say(error)})")

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
            what, where=f"{self._path}, record {max(self._records, 1)}", fix="the file may be truncated: mend it"
        )
