"""Fingerprints that tell whether a file, a folder or a setting has changed since it was last seen, and seals: digests
that a JSON object or a line of JSON carries in itself, by which a reader notices a single changed byte."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_READ_WHOLE = 64 * 2**20
"""The largest size, in bytes, at which a whole file is read. A larger file is identified by its size and its first
64 MiB, because reading gigabytes of weights takes minutes."""


def digest_of(value: Any) -> str:
    """Return the SHA-256 digest of a plain value, written as JSON. The order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


SEAL = "sha256"
"""The key under which a sealed JSON object has the digest of all its other values."""
LINE_SEAL = "line_sha256"
"""The last key of a sealed line of JSON: the first 16 hex digits of the digest of all bytes before it."""
_LINE_END = re.compile(rb', "line_sha256": "([0-9a-f]{16})"\}\n?\Z')
_LINE_END_BYTES = len(b', "line_sha256": "0123456789abcdef"}\n')


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with its seal. The digest is that of what a reader of the JSON gets."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(value), default=str))
    plain.pop(SEAL, None)
    return {**plain, SEAL: digest_of(plain)}


def unsealed(value: Any) -> Any:
    """Return a JSON value without its seal. Raise ValueError if the seal is broken; older files have none."""
    if not isinstance(value, dict) or SEAL not in value:
        return value
    plain = {key: inner for key, inner in value.items() if key != SEAL}
    if digest_of(plain) != value[SEAL]:
        raise ValueError("it was changed after it was written: its digest differs")
    return plain


def sealed_line(line: bytes) -> bytes:
    """Return the line of a JSON object, which ends with a newline, with its seal."""
    inside = line.removesuffix(b"}\n")
    if inside == b"{":
        return line
    return inside + f', "{LINE_SEAL}": "{hashlib.sha256(inside).hexdigest()[:16]}"}}\n'.encode()


def unsealed_line(line: bytes) -> bytes:
    """Return a line without its seal. Raise ValueError if the seal is broken; lines of older files have none."""
    found = _LINE_END.search(line, max(0, len(line) - _LINE_END_BYTES))
    if found is None:
        ends_in_digest = re.search(rb'([0-9a-f]{16})"\}\n?\Z', line)
        start = ends_in_digest.start() - len(f', "{LINE_SEAL}": "') if ends_in_digest else -1
        is_own = start > 0 and hashlib.sha256(line[:start]).hexdigest()[:16].encode() == line[-19:].strip()[:16]
        if is_own or LINE_SEAL.encode() in line[-2 * _LINE_END_BYTES :]:
            raise ValueError("the digest at the end of the line is damaged")
        return line
    inside = line[: found.start()]
    if hashlib.sha256(inside).hexdigest()[:16].encode() != found[1]:
        raise ValueError("the line was changed after it was written: its digest differs")
    return inside + b"}\n"


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
