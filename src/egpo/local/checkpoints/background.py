"""The thread that writes a checkpoint while training goes on, from a copy of the state in the host's memory.

Training waits only for the copy. The thread calls `Checkpoints.save`, so that the files and their order are the same. A
checkpoint that is being written does not have its final name yet, and does not count if the process is killed.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from egpo.local.checkpoints.checkpoint import Checkpoints, Export, Snapshot, room_for
from egpo.local.memory import free_host_bytes
from egpo.waits import waiting

_ALIGNMENT = 256
_SPARE = 0.25
_LEAST_SPARE_BYTES = 256 * 2**20
"""Main memory that must stay free besides the copy: a quarter of its size, at least 256 MiB."""
_SPARE_DISK_BYTES = 256 * 2**20


ExportWeights = Callable[[Mapping[str, Tensor], Path], None]
"""A function that writes the model, with the given weights, and its tokenizer into a folder."""


@dataclass(frozen=True)
class FinishedWrite:
    """The outcome of writing the checkpoint of `step`. `error`: why it failed; a SaveError if a write was refused."""

    step: int
    error: BaseException | None = None


class BackgroundWriter:
    """Writes one checkpoint at a time, in a thread of its own. Ask `finished` before the next `start`."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints, self._memory = checkpoints, HostMemory()
        self._thread: threading.Thread | None = None
        self._step = 0
        self._error: BaseException | None = None

    def why_not(self, snapshot: Snapshot, weights: Mapping[str, Tensor]) -> str | None:
        """Return why the checkpoint is not to be written in the background, as a clause of a message; else None.

        There must be memory for the copy. While a checkpoint fills the disk, the next steps could not write their
        metrics, and the run would end; a checkpoint that is waited for costs a warning.
        """
        num_bytes = _places([*snapshot.tensors.values(), *weights.values()])[1]
        if not room_for(self._checkpoints.root, num_bytes + _SPARE_DISK_BYTES):
            return f"it could leave less than {_SPARE_DISK_BYTES >> 20} MiB of the disk free"
        return self._memory.why_not(num_bytes)

    def start(self, snapshot: Snapshot, weights: Mapping[str, Tensor], export: ExportWeights) -> bool:
        """Copy the state, and begin to write its checkpoint. Return False if there is no memory or no thread for it.

        `export` writes the model with the copies of `weights`, in the thread.
        """
        try:
            tensors, weights = self._memory.copied(snapshot.tensors, weights)
        except MemoryError:
            return False
        copy = replace(snapshot, tensors=tensors, state=deepcopy(snapshot.state))
        self._step, self._error = snapshot.step, None
        self._thread = threading.Thread(target=self._write, args=(copy, partial(export, weights)), name="checkpoint")
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None
        return self._thread is not None

    def finished(self, *, wait: bool) -> FinishedWrite | None:
        """Return the outcome of the checkpoint that `start` began, once; None without one, or if it is not finished.

        With `wait`, wait until it is finished.
        """
        if self._thread is None or (self._thread.is_alive() and not wait):
            return None
        with waiting("checkpoint", f"the checkpoint of step {self._step}, which is being written"):
            self._thread.join()
        self._thread = None
        return FinishedWrite(self._step, self._error)

    def _write(self, snapshot: Snapshot, export: Export) -> None:
        try:
            self._checkpoints.save(snapshot, export)
        # A panic of a Rust library is not an Exception. The thread that calls `finished` raises or shows the error.
        except BaseException as error:
            self._error = error


class HostMemory:
    """The main memory into which states are copied.

    It is kept, because getting new memory takes longer than filling it. For tensors on a GPU it is page-locked, so that
    they are copied at the speed of the link.
    """

    def __init__(self) -> None:
        self._buffer: np.ndarray[Any, np.dtype[np.uint8]] | None = None
        self._is_locked = False

    def why_not(self, num_bytes: int) -> str | None:
        if self._buffer is not None and len(self._buffer) >= num_bytes:
            return None
        free = free_host_bytes()
        if free is None:
            return "it is not known how much main memory is free"
        if free < num_bytes + max(_SPARE * num_bytes, _LEAST_SPARE_BYTES):
            needed, left = (f"{size / 2**30:.1f} GiB" for size in (num_bytes, max(0, free)))
            return f"a copy takes {needed} of main memory, and {left} are free"
        return None

    def copied(self, *states: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """Return copies of the tensors. Tied tensors stay tied, and all others get a storage of their own.

        transformers takes tensors of one storage for tied weights.
        """
        tensors = [tensor for state in states for tensor in state.values()]
        on_gpu = [tensor for tensor in tensors if tensor.is_cuda]
        places, end = _places(tensors)
        buffer = self._at_least(end, is_on_gpu=bool(on_gpu))
        copies: dict[_Key, Tensor] = {}
        for tensor in tensors:
            if (key := _key(tensor)) not in copies:
                place = buffer[places[key] : places[key] + tensor.nbytes]
                copies[key] = torch.from_numpy(place).view(tensor.dtype).view(tensor.shape)
                if tensor.is_cuda:
                    copies[key].copy_(tensor.detach(), non_blocking=True)
                else:  # by one thread: on busy cores torch's threads wait for each other at every tensor
                    place[:] = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        if on_gpu:
            torch.cuda.synchronize(on_gpu[0].device)
        return [{name: copies[_key(tensor)] for name, tensor in state.items()} for state in states]

    def _at_least(self, num_bytes: int, *, is_on_gpu: bool) -> "np.ndarray[Any, np.dtype[np.uint8]]":
        if self._buffer is None or len(self._buffer) < num_bytes:
            self._unlock()
            self._buffer = np.empty(num_bytes, np.uint8)  # numpy asks for huge pages, which are faster to get and lock
            if is_on_gpu:
                self._lock()
        return self._buffer

    def _lock(self) -> None:
        """Page-lock the buffer, after all of torch's threads have touched its pages. If the system refuses it, copies
        are slower."""
        assert self._buffer is not None
        torch.from_numpy(self._buffer).zero_()
        status = _cuda().cudaHostRegister(self._buffer.ctypes.data, len(self._buffer), 0)
        self._is_locked = int(status) == 0
        if not self._is_locked:
            with suppress(RuntimeError):  # the next kernel would report the refusal as its own error
                torch.zeros(1, device="cuda")

    def _unlock(self) -> None:
        if self._is_locked and self._buffer is not None:
            _cuda().cudaHostUnregister(self._buffer.ctypes.data)
        self._is_locked = False

    def __del__(self) -> None:
        try:  # no `suppress`: at the end of the process, torch and the names of this module may be gone
            self._unlock()
        except Exception:
            return


def _cuda() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


_Key = tuple[torch.device, int, torch.dtype, torch.Size, tuple[int, ...]]
"""What tied tensors have in common: device, address, dtype, shape and strides."""


def _key(tensor: Tensor) -> _Key:
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _places(tensors: Iterable[Tensor]) -> tuple[dict[_Key, int], int]:
    """Return where each tensor begins in the buffer, and the size of the buffer. Tied tensors have one place."""
    places: dict[_Key, int] = {}
    end = 0
    for tensor in tensors:
        if _key(tensor) not in places:
            places[_key(tensor)] = end
            end += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
    return places, end
