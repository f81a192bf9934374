import pytest
import torch

from egpo.errors import EgpoError
from egpo.local import memory
from egpo.local.memory import held_by_others, is_out_of_memory, out_of_memory_as

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


def test_who_holds_the_gpu_is_said(monkeypatch):
    """Runs that share a GPU once failed with "allow shorter sequences", though the other runs held the memory."""
    monkeypatch.setattr(memory.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(memory.torch.cuda, "memory_reserved", lambda: 8 * 2**30)
    monkeypatch.setattr(memory.torch.cuda, "mem_get_info", lambda: (1 * 2**30, 140 * 2**30))
    assert held_by_others() == "; other processes hold 131 of the 140 GiB of this GPU"
    said = "out of memory moving the model to the GPU; other processes hold 131 of"
    with pytest.raises(EgpoError, match=said), out_of_memory_as("moving the model to the GPU", "run fewer"):
        raise torch.OutOfMemoryError("CUDA out of memory")
    monkeypatch.setattr(memory.torch.cuda, "mem_get_info", lambda: (130 * 2**30, 140 * 2**30))
    assert held_by_others() == ""


def test_another_error_is_not_hidden():
    with pytest.raises(RuntimeError, match="shapes"), out_of_memory_as("here", "nothing"):
        raise RuntimeError("shapes do not match")
