"""What tells whether an input or an output is still what it was."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from egpo.config.machine import model_folder
from egpo.data.manifest import file_digest

_READ_WHOLE = 64 * 2**20
"""Bytes. Of a larger file the size is looked at, and its first part: reading a model of gigabytes takes minutes."""


def digest_of(value: Any) -> str:
    """Of plain values; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def print_of(path: Path) -> str | None:
    """Of a file; None where there is none."""
    if not path.is_file():
        return None
    size = path.stat().st_size
    if size <= _READ_WHOLE:
        return f"{size}:{file_digest(path)}"
    with path.open("rb") as file:
        return f"{size}:{hashlib.sha256(file.read(_READ_WHOLE)).hexdigest()}"


def folder_digest(folder: Path) -> str:
    """Of the files in a folder, not of those further down."""
    return digest_of({path.name: print_of(path) for path in files_in(folder)})


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.is_file() and not path.name.startswith("."))


def model_identity(name: str) -> str:
    """Of its files where it lies on this machine; else its name, which the hub keeps."""
    folder = Path(model_folder(name)).expanduser()
    return folder_digest(folder) if folder.is_dir() else name


def prints_of(paths: Iterable[Path]) -> dict[Path, str | None]:
    return {path: print_of(path) for path in paths}
