"""What running out of memory looks like."""

import torch

OUT_OF_MEMORY = (RuntimeError, MemoryError)
"""What allocators raise: ask `is_out_of_memory` whether it is that."""

# torch.OutOfMemoryError is the GPU's alone.
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
