"""The manifest of prepared data (`manifest.json`): its files with their digests, and the source and settings used.

It contains no time and no absolute path, so that the same preparation gives the same bytes. Each file has two digests.
The digest of its bytes shows whether the file was damaged or edited. The digest of its rows shows whether two runs used
the same data; it does not depend on pyarrow's version or on the compression.
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
from egpo.fingerprints import sealed, unsealed

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class FileEntry:
    """A data file in the manifest: its number of rows, and the digests of its bytes and of its rows.

    `rows_sha256` is "" in older manifests.
    """

    rows: int
    sha256: str
    rows_sha256: str = ""

    @staticmethod
    def of(path: Path, rows: int) -> "FileEntry":
        return FileEntry(rows, file_digest(path), rows_digest(path))


@dataclass(frozen=True)
class Manifest:
    """The contents of `manifest.json`.

    `source`: a file name, a name on the hub, or `generator`. `source_sha256`: the digest of the source; "" for a
    generator, whose rows depend only on `version`, `seed` and `settings`. `settings`: the options that change the rows.
    `dropped`: number of records that were left out, by reason.
    """

    kind: str
    source: str
    source_sha256: str
    version: int
    seed: int
    settings: Mapping[str, Any]
    files: Mapping[str, FileEntry]
    dropped: Mapping[str, int] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(sealed(asdict(self)), indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_manifest(directory: Path) -> Manifest | None:
    """Read the manifest of a folder. Return None if there is none, as for data that egpo did not prepare."""
    path = directory / MANIFEST
    if not path.exists():
        return None
    try:
        value = unsealed(json.loads(path.read_text(encoding="utf-8")))
        return Manifest(**{**value, "files": {name: FileEntry(**entry) for name, entry in value["files"].items()}})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = f"the file is not a valid manifest of egpo ({error!s:.80})"
        raise InputError(what, where=str(path), fix="prepare the data again") from error


def verify(directory: Path, name: str) -> None:
    """Raise InputError if the digest of the file `name` differs from that in the manifest of its folder.

    The file was then edited, or comes from a different preparation.
    """
    manifest = read_manifest(directory)
    if manifest is None or name not in manifest.files:
        return
    if file_digest(directory / name) != manifest.files[name].sha256:
        raise InputError(
            f"the file does not match its digest in {MANIFEST}",
            where=str(directory / name),
            fix="prepare the data again with --force",
        )


def data_digest(path: Path) -> str:
    """Return the text `rows:` followed by the digest of a file's rows.

    The digest is taken from the manifest in the same folder if the file's bytes match it; otherwise the rows are read.
    """
    manifest = read_manifest(path.parent)
    entry = manifest.files.get(path.name) if manifest else None
    if entry and entry.rows_sha256 and entry.sha256 == file_digest(path):
        return ROWS + entry.rows_sha256
    return ROWS + rows_digest(path)


def rows_digest(path: Path) -> str:
    """Return the SHA-256 of the records of a parquet or JSON file, in their order.

    Each record is hashed as one line of JSON with sorted keys, so that neither the file's format nor the order of its
    columns matters.
    """
    digest = hashlib.sha256()
    for record in read_records(path):
        line = json.dumps(record.value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
        digest.update(line.encode("utf-8", "backslashreplace") + b"\n")
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
