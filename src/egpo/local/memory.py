"""Recognise errors that mean out of memory, on a CPU and on a GPU, and say who holds a GPU's memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from egpo.errors import EgpoError

OUT_OF_MEMORY = (RuntimeError, MemoryError)
"""Exception types that allocators raise; `is_out_of_memory` tells whether one of them means out of memory."""

# torch.OutOfMemoryError is raised for GPUs only. Other allocators raise a RuntimeError with one of these texts.
_SIGNS = (
    "can't allocate memory",
    "not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "Triton Error [CUDA]: out of memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(sign in str(error) for sign in _SIGNS)


_WORTH_NAMING = 0.1
"""Other processes are named if they hold more than this fraction of the GPU's memory."""


def held_by_others() -> str:
    """Return a clause about the GPU memory that other processes hold, such as another run; "" if it is little."""
    if not torch.cuda.is_available():
        return ""
    free, total = torch.cuda.mem_get_info()
    others = total - free - torch.cuda.memory_reserved()
    if others < _WORTH_NAMING * total:
        return ""
    return f"; other processes hold {others / 2**30:.0f} of the {total / 2**30:.0f} GiB of this GPU"


@contextmanager
def out_of_memory_as(what: str, fix: str) -> Iterator[None]:
    """Raise an error that means out of memory as an EgpoError: "out of memory" and `what`, with `fix`.

    It can also decorate a function.
    """
    try:
        yield
    except OUT_OF_MEMORY as error:
        if isinstance(error, EgpoError) or not is_out_of_memory(error):
            raise
        raise EgpoError(f"out of memory {what}{held_by_others()}", fix=fix) from error
