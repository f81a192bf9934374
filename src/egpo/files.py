"""Files that are there whole or not at all, whatever happens to the process or the machine."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

UNFINISHED = ".egpo-"
"""Prefix of the names of files and folders under way: what lies under it is no data."""
ROWS = "rows:"
"""Prefix of a digest of rows, wherever a digest of a file's bytes could stand too."""


MAX_PATH_BYTES = 2_048
"""The system's limit is 4,096; the rest is for the files below a folder that a setting names."""
MAX_NAME_BYTES = 255


def path_fault(text: str) -> str | None:
    """What a path must be to be opened at all, where this one is not; None where nothing is wrong with its text."""
    if "\0" in text:
        return "a path without NUL characters"
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        return "a path of Unicode text"
    if len(encoded) > MAX_PATH_BYTES:
        return f"a path of {MAX_PATH_BYTES:,} bytes at most (this one has {len(encoded):,})"
    longest = max(map(len, encoded.split(b"/")))
    if longest > MAX_NAME_BYTES:
        return f"a path whose names have {MAX_NAME_BYTES} bytes at most (one has {longest:,})"
    try:
        Path(text).expanduser()
    except RuntimeError:
        return f"a path that exists: no home folder is known for `{text.partition('/')[0]}`"
    return None


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
