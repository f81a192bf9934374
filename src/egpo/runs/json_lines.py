"""Files of JSON objects, one a line, that one process appends to while others read.

A line counts once its newline is there: what follows the last newline is a line under way, or cut off.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from egpo.errors import EgpoError, InputError
from egpo.files import fsync_path


@dataclass(frozen=True)
class Line:
    """An object, the number of its line counted from 1, and the size of the file up to and with that line."""

    value: dict[str, Any]
    number: int
    end: int


class LineStream:
    """Appends whole lines. A line that could not be written whole is taken back."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, value: Mapping[str, Any]) -> None:
        """In the hands of the system when this returns: it outlives the process, but not yet the machine (`sync`)."""
        line = encoded(value)
        try:
            with self.path.open("ab", buffering=0) as file:
                start = file.seek(0, os.SEEK_END)
                written = file.write(line)
                if written != len(line):
                    file.truncate(start)
                    raise OSError(f"only {written} of {len(line)} bytes could be written")
        except OSError as error:
            fix = "free some space or mend the permissions, then go on with --resume"
            raise EgpoError(f"cannot be written ({error.strerror or error})", where=str(self.path), fix=fix) from error

    def sync(self) -> None:
        """On the disk, name and all. Nothing where there is no file yet."""
        if self.path.exists():
            fsync_path(self.path)
            fsync_path(self.path.parent)

    def cut(self, size: int) -> None:
        """Keep the first `size` bytes. What is kept is never rewritten, so no crash can lose it."""
        if self.path.exists():
            os.truncate(self.path, size)
            self.sync()


def encoded(value: Mapping[str, Any]) -> bytes:
    """One line of strict JSON in UTF-8. A lone surrogate, which UTF-8 has no place for, becomes its JSON escape."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace") + b"\n"


def read_lines(path: Path) -> Iterator[Line]:
    """Every whole line of a file. One that is no JSON object is an error that names it."""
    if not path.is_file():
        raise InputError("no such file", where=str(path), fix="check the path")
    with path.open("rb") as file:
        end = 0
        for number, text in enumerate(file, 1):
            if not text.endswith(b"\n"):
                return
            end += len(text)
            yield Line(_decoded(text, f"{path}, line {number}"), number, end)


def _decoded(text: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {text[:60]!r}", where=where, fix="the file is damaged: mend the line") from error
    if not isinstance(value, dict):
        raise InputError(f"no JSON object: {text[:60]!r}", where=where, fix="the file is damaged: mend the line")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
