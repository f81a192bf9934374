"""Recognise errors that mean out of memory, on a CPU and on a GPU."""

import torch

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
