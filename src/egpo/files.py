"""Files that are there whole or not at all, whatever happens to the process or the machine."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

UNFINISHED = ".egpo-"
"""Prefix of the names of files and folders under way: what lies under it is no data."""
ROWS = "rows:"
"""Prefix of a digest of rows, wherever a digest of a file's bytes could stand too."""


def fsync_path(path: Path) -> None:
    """The bytes of a file, or the names in a folder, on the disk and no longer only in memory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Readers find the old content or the new, never a part. Text is UTF-8.

    Written beside `path`, put on the disk, renamed. After a failure (OSError) the old content stands and nothing else
    is left; a process that is killed may leave a file whose name starts with `UNFINISHED`.
    """
    aside = path.with_name(f"{UNFINISHED}{path.name}-{secrets.token_hex(4)}")
    try:
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with open(handle, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        with suppress(FileNotFoundError):
            aside.unlink()
        raise
    fsync_path(path.parent)
