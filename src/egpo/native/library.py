"""Compile, cache and load the library of C kernels.

The library is compiled by the machine's C compiler at first use and kept in a cache folder for later processes. A call
of a kernel releases the interpreter's lock while it computes.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import threading
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from egpo.errors import EgpoError, warn_once
from egpo.files import UNFINISHED, cache_folder, fsync_path
from egpo.processes.commands import run_limited

_SOURCES = Path(__file__).parent / "sources"
_LIMIT_S = 300
_FLAGS = (
    *("-std=gnu11", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared"),
    # Needed to vectorise sums. Not -ffast-math: it assumes no NaN, and makes torch round small numbers to 0.
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math", "-freciprocal-math"),
)
_TRAILER = b"egpo kernels, sha256: "


class CompileError(EgpoError):
    """The error for kernels that cannot be compiled on this machine, with the reason."""


def library_file() -> Path:
    """Return the path of the library for these sources, flags, compiler and CPU; compile it if needed.

    A damaged file is compiled again: loading a truncated one ends the process with SIGBUS, and one with a changed byte
    may compute anything.
    """
    compiler = _compiler()
    identity = (
        *_FLAGS,
        _TRAILER.decode(),
        _run([compiler, "--version"]),
        _cpu(),
        *map(Path.read_text, sorted(_SOURCES.iterdir())),
    )
    digest = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:16]
    path = cache_folder() / f"kernels-{digest}.so"
    if not path.exists():
        _compile(compiler, path)
    elif not _is_whole(path):
        warn_once(f"damaged {path}", f"{path} is damaged; compiling the kernels again")
        _compile(compiler, path)
    return path


def _is_whole(path: Path) -> bool:
    """Return whether the file ends with the digest of the bytes before it."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    library = content[: -len(_TRAILER) - hashlib.sha256().digest_size]
    return content == _sealed(library)


def _sealed(library: bytes) -> bytes:
    """Return the library with its digest appended, so that both are always in one file.

    The loader ignores bytes after the end of an ELF file.
    """
    return library + _TRAILER + hashlib.sha256(library).digest()


def _compile(compiler: str, path: Path) -> None:
    """Compile to a temporary file and rename it, because several processes or threads may compile at the same time."""
    temporary = path.with_name(f"{UNFINISHED}{os.getpid()}-{threading.get_ident()}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _run([compiler, *_FLAGS, "-o", str(temporary), *map(str, sorted(_SOURCES.glob("*.c"))), "-lm"])
            temporary.write_bytes(_sealed(temporary.read_bytes()))
            fsync_path(temporary)
            temporary.replace(path)
            fsync_path(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise CompileError(f"{path.parent} cannot be written ({error.strerror})") from error


def _compiler() -> str:
    names = (os.environ.get("CC", ""), "cc", "gcc", "clang")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        raise CompileError("no C compiler (cc, gcc or clang)")
    return found


def _run(command: list[str]) -> str:
    try:
        done = run_limited(command, wait="compiler", what=f"the C compiler ({command[0]})", limit_s=_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"{command[0]} took more than {_LIMIT_S} s") from error
    if done.returncode:
        complaint = (done.stderr.strip() or "no reason given").splitlines()[0]
        raise CompileError(f"{Path(command[0]).name} failed: {complaint[:200]}")
    return done.stdout


def _cpu() -> str:
    """Return a description of the CPU, on which -march=native depends: machines may share a home folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    kept = ("model name", "flags", "Features", "CPU part")
    return "\n".join([platform.machine(), platform.processor(), *sorted({ln for ln in lines if ln.startswith(kept)})])


VARIABLE = "EGPO_NATIVE"
"""The environment variable that disables the C kernels if it is 0: torch then computes everything."""

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
    "stats_gradient": "pppppp lif",
    "choose": "ppppp lif",
    "attend_pack": "ppppp pp iiiiif",
    "attend_pack_back": "pppppppp pp iiiiif",
}
_NEED_MEMORY = ("rms_norm_back", "heads_back", "decode", "choose", "attend_pack", "attend_pack_back")
"""The kernels that allocate memory. They return 0 if there is not enough."""


@cache
def kernels() -> Any:
    """Return the library, compiled if needed; None if it cannot be used (`why_no_kernels` gives the reason)."""
    return None if why_no_kernels() else _load()


@cache
def why_no_kernels() -> str | None:
    """Return why the kernels cannot be used; None if they can."""
    if os.environ.get(VARIABLE) == "0":
        return f"{VARIABLE}=0"
    try:
        _load()
    except CompileError as error:
        return str(error)
    except OSError as error:  # the cache has a library of another system, or its folder does not allow execution
        return f"the compiled library cannot be loaded ({error})"
    return None


@cache
def describe_kernels() -> str:
    """Return the version of the kernels for the provenance of a run: the last bits of its results depend on it."""
    return f"torch ({why_no_kernels()})" if why_no_kernels() else _file().stem


def address(tensor: Tensor) -> int:
    """Return the address of a contiguous float32 tensor for a kernel.

    It does not keep the tensor alive: the caller must hold a reference until the kernel has returned.
    """
    assert tensor.dtype == torch.float32, "the tensor is not float32"
    assert tensor.is_contiguous(), "the tensor is not contiguous"
    return tensor.data_ptr()


def suits(*tensors: Tensor) -> bool:
    """Return whether the kernels are available and can process these tensors."""
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
    """Return the address of the matrix product (BLAS sgemm) in torch's library."""
    torch_cpu = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        return ctypes.cast(ctypes.CDLL(str(torch_cpu)).sgemm_, ctypes.c_void_p).value
    except AttributeError as error:
        raise CompileError("torch's library does not export sgemm") from error
