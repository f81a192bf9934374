"""The kernels' library: compiled by the machine's own C compiler when it is first needed, kept for the next process.

The kernels as Python calls them. A call gives up the interpreter's lock for as long as it computes.
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
from egpo.files import UNFINISHED, fsync_path

_SOURCES = Path(__file__).parent / "sources"
_LIMIT_S = 300
_FLAGS = (
    *("-std=gnu11", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared"),
    # What vectorising sums needs. Not -ffast-math: it knows no NaN, and makes torch round small numbers to 0.
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math", "-freciprocal-math"),
)
_TRAILER = b"egpo kernels, sha256: "


class CompileError(EgpoError):
    """Why there are no kernels here: one phrase."""


def library_file() -> Path:
    """Of the sources, the flags, the compiler and the CPU together: whichever of them changes, another file.

    A file that is not whole is compiled anew: loading one that was cut short ends the process with SIGBUS, and one
    with a changed byte may compute anything."""
    compiler = _compiler()
    identity = (
        *_FLAGS,
        _TRAILER.decode(),
        _run([compiler, "--version"]),
        _cpu(),
        *map(Path.read_text, sorted(_SOURCES.iterdir())),
    )
    digest = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:16]
    path = _folder() / f"kernels-{digest}.so"
    if not path.exists():
        _compile(compiler, path)
    elif not _is_whole(path):
        warn_once(f"damaged {path}", f"{path} is damaged: the kernels are compiled again")
        _compile(compiler, path)
    return path


def _is_whole(path: Path) -> bool:
    """Whether the file ends with the digest of what comes before."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    library = content[: -len(_TRAILER) - hashlib.sha256().digest_size]
    return content == _sealed(library)


def _sealed(library: bytes) -> bytes:
    """The library and its digest in one file, so that no process finds one without the other. What follows the end of
    an ELF file is not looked at when it is loaded."""
    return library + _TRAILER + hashlib.sha256(library).digest()


def _compile(compiler: str, path: Path) -> None:
    """Written aside and renamed: two processes may be at it, or two threads of one."""
    aside = path.with_name(f"{UNFINISHED}{os.getpid()}-{threading.get_ident()}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _run([compiler, *_FLAGS, "-o", str(aside), *map(str, sorted(_SOURCES.glob("*.c"))), "-lm"])
            aside.write_bytes(_sealed(aside.read_bytes()))
            fsync_path(aside)
            aside.replace(path)
            fsync_path(path.parent)
        finally:
            aside.unlink(missing_ok=True)
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
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"{command[0]} took more than {_LIMIT_S} s") from error
    if done.returncode:
        complaint = (done.stderr.strip() or "no reason given").splitlines()[0]
        raise CompileError(f"{Path(command[0]).name} fails: {complaint[:200]}")
    return done.stdout


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "egpo"


def _cpu() -> str:
    """All that -march=native may look at: a home folder may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    kept = ("model name", "flags", "Features", "CPU part")
    return "\n".join([platform.machine(), platform.processor(), *sorted({ln for ln in lines if ln.startswith(kept)})])


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
