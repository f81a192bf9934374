"""Tensors to a safetensors file, straight from where they lie. Gigabytes: while one piece is fetched from its device,
the one before is written and digested, and those before it are put on the disk."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from egpo.local.checkpoints.manifest import FileEntry

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
    """What `safetensors.torch.load_file` reads; on the disk when it returns."""
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
    """The file's bytes, in order. Wide types stand first, so that every tensor lies where its type may."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    yield memoryview(_header({name: tensors[name] for name in names}))
    for name in names:
        flat = tensors[name].detach().contiguous().reshape(-1).view(torch.uint8)
        for start in range(0, len(flat), _PIECE):
            yield flat[start : start + _PIECE].cpu().numpy().data


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    """Its length, then where each tensor lies in what follows; padded, so that this begins at a multiple of 8."""
    entries, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        entries[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
