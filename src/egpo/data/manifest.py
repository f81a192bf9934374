"""`manifest.json`: what a directory of data holds and where it came from, so that two experiments can prove
that they read the same rows. It has no time and no absolute path in it: the same preparation gives the same bytes."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from egpo.errors import InputError

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class FileEntry:
    """One file: its rows, and the digest of its bytes."""

    rows: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """`source` is a file name, a hub name or `generator`; its digest is empty for a generator, whose `version`
    and `seed` say all. `settings` are the options that shaped the rows. `dropped` counts by reason."""

    kind: str
    source: str
    source_sha256: str
    version: int
    seed: int
    settings: Mapping[str, Any]
    files: Mapping[str, FileEntry]
    dropped: Mapping[str, int] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_manifest(directory: Path) -> Manifest | None:
    """The directory's manifest; None where it has none (data of another's making)."""
    path = directory / MANIFEST
    if not path.exists():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return Manifest(**{**value, "files": {name: FileEntry(**entry) for name, entry in value["files"].items()}})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError("not a manifest of ours", where=str(path), fix="prepare the data again") from error


def verify(directory: Path, name: str) -> None:
    """Raises where `name` is not the file that the manifest describes: edited, or half of another preparation."""
    manifest = read_manifest(directory)
    if manifest is None or name not in manifest.files:
        return
    if file_digest(directory / name) != manifest.files[name].sha256:
        raise InputError(
            f"not the file that {MANIFEST} describes",
            where=str(directory / name),
            fix="prepare the data again with --force",
        )


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
