"""The writer of large safetensors files.

It overlaps three operations: while one piece is copied from its device, the previous piece is written and digested,
and earlier ones are synced to disk.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from egpo.runs.checkpoint_manifest import FileEntry

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
