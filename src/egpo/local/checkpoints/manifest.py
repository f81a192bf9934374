"""A checkpoint's manifest (size and digest of every file), and a writer for large safetensors files.

The writer overlaps three operations: while one piece is copied from its device, the previous piece is written and
digested, and earlier ones are synced to disk.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from egpo.errors import InputError

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
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> CheckpointManifest:
    """Read the manifest in a checkpoint's folder.

    Raise InputError if there is none, or if its format is unsupported.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise InputError("no manifest: this is not a checkpoint of the embedded engine", where=str(folder))
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
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


_PIECE = 32 * 2**20
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileEntry:
    """Write tensors to a safetensors file and sync it to disk. Return its size and digest."""
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file, ThreadPoolExecutor(3) as pool:
        under_way: list[Future[Any]] = []
        put_on_disk = pool.submit(os.fdatasync, file.fileno())
        for piece in _pieces(tensors):
            for task in under_way:
                task.result()
            if put_on_disk.done():
                put_on_disk.result()
                put_on_disk = pool.submit(os.fdatasync, file.fileno())
            under_way = [pool.submit(file.write, piece), pool.submit(digest.update, piece)]
            size += len(piece)
        for task in [*under_way, put_on_disk]:
            task.result()
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(size, digest.hexdigest())


def _pieces(tensors: Mapping[str, Tensor]) -> Iterator[memoryview]:
    """Yield the bytes of a safetensors file in order. Wide dtypes come first, so that every tensor is aligned."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    yield memoryview(_header({name: tensors[name] for name in names}))
    for name in names:
        flat = tensors[name].detach().contiguous().reshape(-1).view(torch.uint8)
        for start in range(0, len(flat), _PIECE):
            yield flat[start : start + _PIECE].cpu().numpy().data


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the header of a safetensors file: its length, then dtype, shape and offsets of each tensor as JSON.

    It is padded to a multiple of 8 bytes.
    """
    entries, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        entries[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
