import pytest
import torch

from egpo.local.memory import is_out_of_memory

SAID = [
    "CUDA error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
]


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), *map(RuntimeError, SAID)]
)
def test_memory_that_ran_out(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", [RuntimeError("shapes do not match"), KeyError("out of memory")])
def test_other_errors(error):
    assert not is_out_of_memory(error)
