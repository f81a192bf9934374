"""Read a GGUF file: its metadata, and where each tensor lies. Nothing else is read until a tensor is asked for.

The format (version 2 and 3, little-endian): magic, version, number of tensors, number of metadata entries; the entries
as key, type, value; for each tensor its name, shape (fastest dimension first), type and offset; then, aligned, the
tensors' bytes. Every length is checked against the size of the file before memory is reserved for it.
"""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from egpo.errors import InputError
from egpo.model_sources.quantisations import QUANTISATIONS, type_name

_MAGIC = b"GGUF"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_DIMENSIONS = 4
_FIX = "copy or download the file again; `sha256sum` tells whether it is the one that was published"


@dataclass(frozen=True)
class TensorEntry:
    """A tensor in the file: its shape as torch has it (slowest dimension first), its type, and its first byte."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    start: int

    @property
    def num_bytes(self) -> int:
        quantisation = QUANTISATIONS[self.type_id]
        return int(np.prod(self.shape)) // quantisation.block_weights * quantisation.block_bytes


@dataclass(frozen=True, eq=False)
class GgufFile:
    """A GGUF file whose header has been read and checked. `weights` dequantises one tensor."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorEntry]
    content: mmap.mmap

    def weights(self, name: str) -> NDArray[np.float32]:
        """Return a tensor in float32, as its type defines it."""
        entry = self.tensors[name]
        block_bytes = QUANTISATIONS[entry.type_id].block_bytes
        count = entry.num_bytes // block_bytes * block_bytes
        raw = np.frombuffer(self.content, np.uint8, count=count, offset=entry.start)
        return QUANTISATIONS[entry.type_id].dequantise(raw.reshape(-1, block_bytes)).reshape(entry.shape)


def read_gguf(path: Path) -> GgufFile:
    """Read and check the header of a GGUF file; InputError if it is truncated, damaged or of an unknown kind."""
    where = f"model {path}"
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read ({error})", where=where, fix=_FIX) from error
    if content[:4] != _MAGIC:
        raise InputError("not a GGUF file: it does not start with `GGUF`", where=where, fix="give a .gguf file")
    try:
        return _parsed(path, content, where)
    except (struct.error, UnicodeDecodeError, OverflowError, RecursionError, _DamagedError) as error:
        what = f"a truncated or damaged GGUF file ({error}; it has {len(content):,} bytes)"
        raise InputError(what, where=where, fix=_FIX) from error


class _DamagedError(Exception):
    """What a header says does not fit the file."""


def _parsed(path: Path, content: mmap.mmap, where: str) -> GgufFile:
    cursor = _Cursor(content, len(_MAGIC))
    version, num_tensors, num_entries = cursor.scalar("I"), cursor.scalar("Q"), cursor.scalar("Q")
    if version not in (2, 3):
        fix = "convert it with a current version of llama.cpp; big-endian files are not supported"
        raise InputError(f"GGUF version {version}; versions 2 and 3 are supported", where=where, fix=fix)
    metadata = {cursor.text(): cursor.value(cursor.scalar("I")) for _ in range(cursor.bounded(num_entries))}
    found = [cursor.tensor() for _ in range(cursor.bounded(num_tensors))]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise _DamagedError(f"the alignment is {alignment!r:.40}")
    first = -(-cursor.place // alignment) * alignment
    entries = [TensorEntry(name, shape, type_id, first + offset) for name, shape, type_id, offset in found]
    for entry in entries:
        _require_whole(entry, len(content), where)
    return GgufFile(path, metadata, {entry.name: entry for entry in entries}, content)


def _require_whole(entry: TensorEntry, size: int, where: str) -> None:
    if entry.type_id not in QUANTISATIONS:
        known = ", ".join(quantisation.name for quantisation in QUANTISATIONS.values())
        what = f"tensor `{entry.name}` has the quantisation {type_name(entry.type_id)}, which is not supported"
        raise InputError(what, where=where, fix=f"use a file with {known}")
    if entry.shape[-1] % QUANTISATIONS[entry.type_id].block_weights:
        raise _DamagedError(f"tensor `{entry.name}` does not consist of whole blocks")
    if entry.start + entry.num_bytes > size:
        raise _DamagedError(f"tensor `{entry.name}` ends at byte {entry.start + entry.num_bytes:,}")


@dataclass
class _Cursor:
    """Reads the header from `place` on."""

    content: mmap.mmap
    place: int

    def scalar(self, letter: str) -> Any:
        (value,) = struct.unpack_from("<" + letter, self.content, self.place)
        self.place += struct.calcsize("<" + letter)
        return value

    def bounded(self, count: int) -> int:
        """Return a count of things that have one byte at least each, if the rest of the file can hold them."""
        if count > len(self.content) - self.place:
            raise _DamagedError(f"a length of {count:,} at byte {self.place:,}")
        return count

    def text(self) -> str:
        length = self.bounded(self.scalar("Q"))
        start, self.place = self.place, self.place + length
        return self.content[start : self.place].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array(self.scalar("I"), self.scalar("Q"))
        if kind not in _SCALARS:
            raise _DamagedError(f"a value of the unknown type {kind} at byte {self.place:,}")
        return self.scalar(_SCALARS[kind])

    def _array(self, kind: int, count: int) -> list[Any]:
        self.bounded(count)
        if kind not in _SCALARS:
            return [self.value(kind) for _ in range(count)]
        letters = f"<{count}{_SCALARS[kind]}"
        values = struct.unpack_from(letters, self.content, self.place)
        self.place += struct.calcsize(letters)
        return list(values)

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, num_dimensions = self.text(), self.scalar("I")
        if not 1 <= num_dimensions <= _MOST_DIMENSIONS:
            raise _DamagedError(f"tensor `{name:.60}` has {num_dimensions} dimensions")
        sizes = tuple(self.scalar("Q") for _ in range(num_dimensions))
        if not all(0 < size < 1 << 40 for size in sizes):
            raise _DamagedError(f"tensor `{name:.60}` has the shape {sizes}")
        return name, sizes[::-1], self.scalar("I"), self.scalar("Q")


def sorted_names(tensors: dict[str, TensorEntry]) -> Iterator[str]:
    """Yield the names of the tensors in the order of their bytes, so that the file is read once from front to back."""
    yield from sorted(tensors, key=lambda name: tensors[name].start)
