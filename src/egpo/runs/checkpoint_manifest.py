"""A checkpoint's manifest, `manifest.json`: size and digest of every file, by which damage is found. No torch."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from egpo.errors import InputError
from egpo.fingerprints import sealed, unsealed

MANIFEST = "manifest.json"
FORMAT = 1
"""Version of the format. Increase it when older versions of egpo can no longer read the checkpoints."""


@dataclass(frozen=True)
class FileEntry:
    """The size of a file in bytes, and its digest."""

    size: int
    sha256: str


CHANGED_SETTINGS = "changed-settings:"
"""Prefix of an identity: a digest of the settings that are not at their defaults."""


@dataclass(frozen=True)
class CheckpointManifest:
    """The content of `manifest.json`.

    `identity`: digest of the settings that a resumed run must share. `score`: the value that `keep_best` compares; None
    if nothing was measured.
    """

    step: int
    identity: str
    score: float | None
    files: Mapping[str, FileEntry]
    format: int = FORMAT


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def describe_files(paths: Iterable[Path], folder: Path) -> dict[str, FileEntry]:
    """Return size and digest of each file, by its path relative to the folder."""
    return {str(path.relative_to(folder)): FileEntry(path.stat().st_size, _digest(path)) for path in paths}


def write_manifest(folder: Path, manifest: CheckpointManifest) -> None:
    (folder / MANIFEST).write_text(json.dumps(sealed(asdict(manifest)), indent=1) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> CheckpointManifest:
    """Read the manifest in a checkpoint's folder.

    Raise InputError if there is none, or if its format is unsupported.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise InputError("no manifest: this is not a checkpoint of the embedded engine", where=str(folder))
    try:
        value: dict[str, Any] = unsealed(json.loads(path.read_text(encoding="utf-8")))
        if value.get("format") != FORMAT:
            what = f"the manifest has format {value.get('format')}, but this version of egpo reads format {FORMAT}"
            raise InputError(what, where=str(path))
        files = {name: FileEntry(int(entry["size"]), entry["sha256"]) for name, entry in value.pop("files").items()}
        return CheckpointManifest(files=files, **value)
    except InputError:
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"the manifest cannot be read ({error!r:.80})", where=str(path)) from error


def verify_files(folder: Path, manifest: CheckpointManifest) -> None:
    """Raise InputError for the first file that differs from the manifest. Other files in the folder are ignored."""
    with ThreadPoolExecutor() as pool:
        for _ in pool.map(lambda name: _verify(folder / name, manifest.files[name]), manifest.files):
            pass


def verify_model(folder: Path) -> None:
    """Raise InputError if a model folder is part of a checkpoint of the embedded engine and a file of it was changed.

    Other folders have no digests, and are not checked.
    """
    actor, prefix = folder.resolve().parent, f"{folder.resolve().name}/"
    if not (actor / MANIFEST).is_file():
        return
    manifest = read_manifest(actor)
    files = {name: entry for name, entry in manifest.files.items() if name.startswith(prefix)}
    try:
        verify_files(actor, replace(manifest, files=files))
    except InputError as error:
        fix = "restore the file, or choose another checkpoint; to change a model, copy its folder first"
        raise InputError(error.faults[0].what, where=error.faults[0].where, fix=fix) from error


def _verify(path: Path, entry: FileEntry) -> None:
    try:
        size = path.stat().st_size
        if size != entry.size:
            raise InputError(f"the file has {size:,} bytes, but {entry.size:,} were written", where=str(path))
        if _digest(path) != entry.sha256:
            raise InputError("the file was changed after it was written (its digest differs)", where=str(path))
    except OSError as error:
        raise InputError(f"the file cannot be read ({error.strerror})", where=str(path)) from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
