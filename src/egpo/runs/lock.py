"""One process at a time writes a run. The lock ends with its process, however that ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from egpo.errors import InputError, warn_once

LOCK_NAME = ".lock"


@contextmanager
def locked(folder: Path, name: str = LOCK_NAME) -> Iterator[None]:
    """Hold the folder for the length of the block; InputError with the other's process id where it is held. Locks of
    other names (which start with `LOCK_NAME`) are other locks.

    A file system without locks (some network ones) gets a warning: nobody could tell there.
    """
    # The file stays when the lock ends: removing it would let two processes lock two files of one name.
    try:
        handle = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        fix = "mend its permissions, or choose another runs=..."
        raise InputError(f"cannot be locked ({error.strerror})", where=str(folder), fix=fix) from error
    try:
        _take(handle, folder)
        yield
    finally:
        os.close(handle)


def _take(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "of unknown number"
        fix = "wait for it or end it, or choose another name=..."
        raise InputError(f"process {holder} is writing this run", where=str(folder), fix=fix) from error
    except OSError as error:
        warn_once(
            "run lock", f"{folder}: this file system has no locks ({error.strerror}); start no second process here"
        )
        return
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
