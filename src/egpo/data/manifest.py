"""`manifest.json`: what a directory of data holds and where it came from, so that two experiments can prove
that they read the same rows. It has no time and no absolute path in it: the same preparation gives the same bytes.

Two digests of a file: of its bytes, which shows whether it was damaged or edited, and of its rows, which shows whether
two runs read the same data. The same rows have other bytes under another version of pyarrow, or another compression.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from egpo.data.readers import read_records
from egpo.errors import InputError
from egpo.files import ROWS

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class FileEntry:
    """One file: its number of rows, the digest of its bytes, and that of its rows ("" in older manifests)."""

    rows: int
    sha256: str
    rows_sha256: str = ""

    @staticmethod
    def of(path: Path, rows: int) -> "FileEntry":
        return FileEntry(rows, file_digest(path), rows_digest(path))


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


def data_digest(path: Path) -> str:
    """`rows:` and the digest of a file's rows. A manifest beside the file is believed while the file's bytes are those
    that it describes: then no row is read."""
    manifest = read_manifest(path.parent)
    entry = manifest.files.get(path.name) if manifest else None
    if entry and entry.rows_sha256 and entry.sha256 == file_digest(path):
        return ROWS + entry.rows_sha256
    return ROWS + rows_digest(path)


def rows_digest(path: Path) -> str:
    """sha256 over the records of a parquet or JSON file, in their order: each as one line of JSON with sorted keys, so
    that neither the file's encoding nor the order of its columns matters. Streaming."""
    digest = hashlib.sha256()
    for record in read_records(path):
        line = json.dumps(record.value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
        digest.update(line.encode("utf-8", "backslashreplace") + b"\n")
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
