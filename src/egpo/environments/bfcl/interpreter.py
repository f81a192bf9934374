"""Finds the Python environment of BFCL, and creates it when it is first needed."""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from egpo.config.machine import this_machine
from egpo.errors import EgpoError, InputError, how_it_ended
from egpo.files import lock_file, write_atomically
from egpo.processes.commands import run_limited
from egpo.waits import waiting

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
VARIABLE = "EGPO_BFCL_PYTHON"
CHECKOUT = Path(".env-bfcl")
"""Folder of the Python environment that `make` creates in a checkout of this repository."""
_WHERE = "import importlib.util as u; print(u.find_spec('bfcl_eval').submodule_search_locations[0])"
_ANSWER_S = 120.0
_READY = ".ready"
_MAKING_S = 3600.0
"""Time limit, in seconds, for each command that creates BFCL's environment."""


def bfcl_python(*, offline: bool = False, say: Callable[[str], None] = print) -> Path:
    """Return the Python interpreter that runs BFCL.

    The first of these is used: $EGPO_BFCL_PYTHON; the one named in the machine file; the environment that `make`
    creates; an environment in the user's cache folder. If the last is missing, it is created, or InputError is raised
    if `offline` is true.
    """
    if named := os.environ.get(VARIABLE):
        return _named(Path(named).expanduser())
    if python := this_machine().environments.bfcl:
        return Path(python)
    for folder in (CHECKOUT, _home()):
        if _is_ready(folder):
            return (folder / "bin" / "python").absolute()
    if offline:
        fix = (
            "run the command once without --offline on a machine with a network, or set "
            f"{VARIABLE} to a Python interpreter with the packages of {REQUIREMENTS}"
        )
        raise InputError(f"BFCL's environment is missing ({_home()})", where="--offline", fix=fix)
    return _made(_home(), say)


def digest() -> str:
    """Return a digest of BFCL's list of packages. If the list changes, a new environment is created."""
    return hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]


def _home() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "egpo" / f"bfcl-{digest()}"


def _is_ready(folder: Path) -> bool:
    marker = folder / _READY
    return marker.is_file() and marker.read_text().strip() == digest() and (folder / "bin" / "python").exists()


def _named(python: Path) -> Path:
    if not os.access(python, os.X_OK):
        raise InputError(f"no Python interpreter at `{python}`", where=VARIABLE, fix="correct or unset this variable")
    return python.absolute()


def _made(folder: Path, say: Callable[[str], None]) -> Path:
    """Create the environment, unless another process has just done so, and return its interpreter.

    An incomplete environment is created again.
    """
    with _alone(folder, say):
        if not _is_ready(folder):  # another process may have created it meanwhile
            _make(folder, say)
    return (folder / "bin" / "python").absolute()


def _make(folder: Path, say: Callable[[str], None]) -> None:
    say(f"creating BFCL's environment in {folder} (once; 0.4 GB)")
    python = folder / "bin" / "python"
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r", str(REQUIREMENTS)]
    for command in ([sys.executable, "-m", "venv", "--clear", str(folder)], [str(python), *install]):
        try:
            what = "venv and pip, which create BFCL's environment"
            done = run_limited(command, wait="package index", what=what, limit_s=_MAKING_S)
        except subprocess.TimeoutExpired as error:
            what = f"`{' '.join(command[:4])} ...` did not end within {_MAKING_S:.0f} s"
            fix = f"check the network; or set {VARIABLE} to an interpreter that has the packages"
            raise EgpoError(what, where=str(folder), fix=fix) from error
        if done.returncode:
            told = (done.stderr or done.stdout).strip().splitlines()[-5:]
            said = "\n".join(told) or f"{command[0]} {how_it_ended(done.returncode)}"
            fix = f"fix this and retry; or set {VARIABLE} to an interpreter that has the packages"
            raise EgpoError(f"BFCL's Python environment could not be created: {said}", where=str(folder), fix=fix)
    write_atomically(folder / _READY, digest() + "\n")


@contextmanager
def _alone(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock, so that only one process at a time creates the environment in `folder`.

    The lock is on a file beside the folder. The kernel releases it when the process ends.
    """
    lock = folder.with_name(f"{folder.name}.lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        fix = f"fix its permissions, or set {VARIABLE} to an interpreter that has the packages"
        raise EgpoError(f"this lock file cannot be written ({error.strerror})", where=str(lock), fix=fix) from error
    try:
        try:
            lock_file(handle)
        except BlockingIOError:
            say(f"waiting for another process that creates BFCL's environment in {folder}")
            with waiting("package index", f"another process that creates {folder}", limit_s=2 * _MAKING_S):
                _lock_within(handle, lock)
        yield
    finally:
        os.close(handle)


def _lock_within(handle: int, lock: Path) -> None:
    deadline = time.monotonic() + 2 * _MAKING_S  # the other process runs two commands
    while True:
        try:
            lock_file(handle)
            return
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                what = f"another process has held the lock for {2 * _MAKING_S:.0f} s"
                raise EgpoError(what, where=str(lock), fix="end that process, then retry") from error
            time.sleep(1)


def data_folder(python: Path) -> Path:
    """Return the folder with BFCL's cases in the environment of the interpreter `python`."""
    try:
        words = [str(python), "-c", _WHERE]
        done = run_limited(words, wait="interpreter", what=f"the interpreter {python}", limit_s=_ANSWER_S)
    except subprocess.TimeoutExpired as error:
        raise EgpoError(
            f"the Python interpreter of BFCL did not start within {_ANSWER_S:.0f} s", where=str(python)
        ) from error
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:]
        raise EgpoError(f"bfcl-eval is not installed for this Python ({' '.join(said)})", where=str(python))
    return Path(done.stdout.strip()) / "data"
