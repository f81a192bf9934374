"""Folders of files under way. Each is locked by its process, and a lock ends with its process, however that ends: so
the living are told from what a killed process left behind."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from egpo.files import UNFINISHED


class StagingFolder:
    """A new folder inside `directory`, locked until it is removed or the process ends."""

    def __init__(self, directory: Path) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=directory))
            # Until it is locked, another process may take it for abandoned: then one more try.
            with suppress(FileNotFoundError):
                self._handle = os.open(self.path, os.O_RDONLY)
                _lock(self._handle, fcntl.LOCK_EX)
                if self.path.exists():
                    return
                os.close(self._handle)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._handle)


def remove_abandoned(directory: Path) -> None:
    """The folders of processes that have ended. Where the file system knows no locks, none: nobody could tell."""
    for path in directory.glob(f"{UNFINISHED}*"):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        if _lock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB):
            shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def _lock(handle: int, operation: int) -> bool:
    try:
        fcntl.flock(handle, operation)
    except OSError:
        return False
    return True
