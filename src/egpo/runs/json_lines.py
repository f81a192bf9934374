"""Files with one JSON object per line, which one process appends to while others read.

Each line ends with a digest of itself, `line_sha256`, which readers check and leave out: a changed byte is noticed.

A line is complete once its newline is written. Text after the last newline is an incomplete line and is ignored.
A finished file may be stored compressed, as `<name>.gz`: it is read like the file itself.
"""

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from egpo.errors import EgpoError, InputError
from egpo.files import fsync_path
from egpo.fingerprints import sealed_line, unsealed_line


@dataclass(frozen=True)
class Line:
    """One line of a file: its JSON object, its number (from 1), and the size of the file in bytes up to its end."""

    value: dict[str, Any]
    number: int
    end: int


class LineStream:
    """A file to which complete lines are appended. A line that could only be written in part is removed again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, value: Mapping[str, Any]) -> None:
        """Append one line. It survives a crash of the process, and after `sync` also a crash of the machine."""
        line = encoded(value)
        try:
            with self.path.open("ab", buffering=0) as file:
                start = file.seek(0, os.SEEK_END)
                written = file.write(line)
                if written != len(line):
                    file.truncate(start)
                    raise OSError(f"only {written} of {len(line)} bytes could be written")
        except OSError as error:
            raise self._cannot_write(error) from error

    def sync(self) -> None:
        """Flush the file and its name in the folder to disk. Do nothing if there is no file yet."""
        try:
            if self.path.exists():
                fsync_path(self.path)
                fsync_path(self.path.parent)
        except OSError as error:
            raise self._cannot_write(error) from error

    def cut(self, size: int) -> None:
        """Shorten the file to its first `size` bytes. They are not rewritten, so a crash cannot lose them."""
        try:
            if self.path.exists():
                os.truncate(self.path, size)
        except OSError as error:
            raise self._cannot_write(error) from error
        self.sync()

    def _cannot_write(self, error: OSError) -> EgpoError:
        fix = "free some space or fix the permissions, then continue with --resume"
        return EgpoError(f"the file cannot be written ({error.strerror or error})", where=str(self.path), fix=fix)


def encoded(value: Mapping[str, Any]) -> bytes:
    """Return an object as one sealed line of strict JSON in UTF-8. A lone surrogate becomes its JSON escape."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return sealed_line(text.encode("utf-8", "backslashreplace") + b"\n")


def lines_file(path: Path) -> Path | None:
    """Return the file itself, or its compressed form `<name>.gz` if only that exists; None if there is neither."""
    return next((one for one in (path, path.with_name(f"{path.name}.gz")) if one.is_file()), None)


def read_lines(path: Path, *, whole: bool = False) -> Iterator[Line]:
    """Yield every complete line of a file. Raise InputError with the line number if a line is not a JSON object.

    `whole`: the file was written at once, so that an incomplete last line is a damage, and an InputError.
    """
    found = lines_file(path)
    if found is None:
        raise InputError("no such file", where=str(path), fix="check the path")
    try:
        with found.open("rb") if found == path else gzip.open(found, "rb") as file:
            end = 0
            for number, text in enumerate(file, 1):
                if not text.endswith(b"\n"):
                    if whole:
                        raise InputError(
                            "the last line is cut off", where=f"{path}, line {number}", fix="restore the file"
                        )
                    return
                end += len(text)
                yield Line(_decoded(text, f"{path}, line {number}"), number, end)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"the file is not valid gzip ({error})", where=str(found), fix="restore the file") from error


def _decoded(text: bytes, where: str) -> dict[str, Any]:
    try:
        plain = unsealed_line(text)
    except ValueError as error:
        raise InputError(str(error), where=where, fix="restore the file, or remove the line") from error
    try:
        value = json.loads(plain, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"the line is not JSON: {text[:60]!r}", where=where, fix="the file is damaged: fix or remove the line"
        ) from error
    if not isinstance(value, dict):
        raise InputError(
            f"the line is not a JSON object: {text[:60]!r}",
            where=where,
            fix="the file is damaged: fix or remove the line",
        )
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
