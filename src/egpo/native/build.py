"""The kernels' library: compiled by the machine's own C compiler when it is first needed, kept for the next process."""

import hashlib
import os
import platform
import shutil
import subprocess
import threading
from pathlib import Path

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
