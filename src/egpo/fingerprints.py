"""Fingerprints that tell whether a file, a folder or a setting has changed since it was last seen."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_READ_WHOLE = 64 * 2**20
"""The largest size, in bytes, at which a whole file is read. A larger file is identified by its size and its first
64 MiB, because reading gigabytes of weights takes minutes."""


def digest_of(value: Any) -> str:
    """Return the SHA-256 digest of a plain value, written as JSON. The order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def fingerprint(path: Path) -> str | None:
    """Return the fingerprint `size:sha256` of a file; None if there is no such file."""
    if not path.is_file():
        return None
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _READ_WHOLE:
            return f"{size}:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        return f"{size}:{hashlib.sha256(file.read(_READ_WHOLE)).hexdigest()}"


def fingerprints(paths: Iterable[Path]) -> dict[Path, str | None]:
    return {path: fingerprint(path) for path in paths}


def folder_digest(folder: Path) -> str:
    """Return one digest of the names and contents of the files directly in a folder. Subfolders are not read."""
    return digest_of({path.name: fingerprint(path) for path in files_in(folder)})


CODE = (".py", ".c", ".h")


def code_digest(package: Path) -> str:
    """Return the first 16 hex digits of a digest of a package's source: names and contents of Python and C files.

    Equal digests mean equal code, also where no git repository says so. Recipes and assets are left out.
    """
    files = sorted(path.relative_to(package).as_posix() for path in package.rglob("*") if path.suffix in CODE)
    return digest_of({name: hashlib.sha256((package / name).read_bytes()).hexdigest() for name in files})[:16]


def files_in(folder: Path) -> list[Path]:
    """Return the files directly in a folder, sorted by path. Hidden files are left out."""
    return sorted(path for path in folder.glob("*") if path.is_file() and not path.name.startswith("."))
