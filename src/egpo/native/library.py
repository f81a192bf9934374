"""The kernels as Python calls them. A call gives up the interpreter's lock for as long as it computes."""

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from egpo.native.build import CompileError, library_file

VARIABLE = "EGPO_NATIVE"
"""0: compute with torch alone."""

_LETTERS = {"p": ctypes.c_void_p, "l": ctypes.c_int64, "i": ctypes.c_int, "f": ctypes.c_float}
_ARGUMENTS = {
    "rms_norm": "pppplif",
    "rms_norm_back": "ppppppli",
    "heads": "pppppp lii f",
    "heads_back": "pppppppp lii",
    "swiglu": "pppl",
    "swiglu_back": "pppppl",
    "decode": "pppppp",
    "pack": "piip",
    "pack_transposed": "piip",
    "multiply": "pppp iii",
    "use_huge_pages": "pl",
    "slice_stats": "ppp lif",
    "logp_gradient": "pppp lif",
    "choose": "ppppp lif",
    "attend_pack": "ppppp pp iiiiif",
    "attend_pack_back": "pppppppp pp iiiiif",
}
_NEED_MEMORY = ("rms_norm_back", "heads_back", "decode", "choose", "attend_pack", "attend_pack_back")
"""These answer whether they had it."""


@cache
def kernels() -> Any:
    """The library, compiled where it is not yet; None where `why_no_kernels` says why."""
    return None if why_no_kernels() else _load()


@cache
def why_no_kernels() -> str | None:
    """One phrase, or None where they work."""
    if os.environ.get(VARIABLE) == "0":
        return f"{VARIABLE}=0"
    try:
        _load()
    except CompileError as error:
        return str(error)
    except OSError as error:  # a library of another system in the same cache, or a folder that executes nothing
        return f"the compiled library cannot be loaded ({error})"
    return None


@cache
def describe_kernels() -> str:
    """For a run's records: its last bits depend on it."""
    return f"torch ({why_no_kernels()})" if why_no_kernels() else _file().stem


def address(tensor: Tensor) -> int:
    """Where a kernel finds the numbers: they must be float32 without gaps. It keeps nothing alive: who asks for the
    address of a copy holds the copy until the kernel is done."""
    assert tensor.dtype == torch.float32, "not float32"
    assert tensor.is_contiguous(), "gaps between the numbers"
    return tensor.data_ptr()


def suits(*tensors: Tensor) -> bool:
    """Kernels are here, and these can be given to them."""
    return all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors) and (
        kernels() is not None
    )


@cache
def _file() -> Path:
    return library_file()


@cache
def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(_file()))
    for name, letters in _ARGUMENTS.items():
        function = getattr(library, name)
        function.restype = None
        function.argtypes = [_LETTERS[letter] for letter in letters.replace(" ", "")]
    for name in _NEED_MEMORY:
        function = getattr(library, name)
        function.restype, function.errcheck = ctypes.c_int, _require_memory
    library.packed_size.restype = ctypes.c_int64
    library.use_sgemm.argtypes = [ctypes.c_void_p]
    library.use_sgemm(_sgemm())
    return library


def _require_memory(had_memory: int, function: Any, arguments: object) -> None:
    if not had_memory:
        raise MemoryError(f"not enough memory for the kernel {function.__name__}")


def _sgemm() -> int | None:
    """torch's own matrix product, which is the machine's best."""
    torch_cpu = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        return ctypes.cast(ctypes.CDLL(str(torch_cpu)).sgemm_, ctypes.c_void_p).value
    except AttributeError as error:
        raise CompileError("torch's library shows no sgemm") from error
