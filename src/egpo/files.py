"""Atomic writes of files, locks, and the check of paths.

After an atomic write a file has its old content or its new content, even if the process or the machine crashes.
"""

import ctypes
import errno
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

UNFINISHED = ".egpo-"
"""Prefix of the names of temporary files and folders, which are not data."""
ROWS = "rows:"
"""Prefix of a digest of the rows of a data file. A digest without this prefix is of the bytes of a file."""


MAX_PATH_BYTES = 2_048
"""The longest path that a setting may have. The limit of Linux is 4,096; the rest is for files below that path."""
MAX_NAME_BYTES = 255


def path_fault(text: str) -> str | None:
    """Return why a text is not a valid path, as the end of a sentence "it must be ..."; None if it is valid."""
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


def cache_folder() -> Path:
    """Return the folder for what egpo can make again: compiled kernels, converted models, verdicts of checks."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "egpo"


def fsync_path(path: Path) -> None:
    """Flush the bytes of a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with _named_in_errors(path):
            os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _named_in_errors(path: Path) -> Iterator[None]:
    """Add the path to an OSError that has none: without it, the error would be taken for one of standard output."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def fsync_tree(folder: Path) -> None:
    """Flush every file and every name below a folder to disk. Do this before the folder gets its final name."""
    for path in [*folder.rglob("*"), folder]:
        fsync_path(path)


def system_error(error: BaseException) -> OSError | None:
    """Return the failed system call behind an error, also if a native library gives it as text; None for others.

    safetensors raises its own error, and tokenizers a plain Exception, both with `(os error 28)` in their text. torch
    raises RuntimeError with `No space left on device (28)`.
    """
    if isinstance(error, OSError):
        return error
    match = re.search(r"(\w+) \((os error )?(\d{1,3})\)", str(error))
    if match is None or not (match[2] or os.strerror(int(match[3])).endswith(match[1])):
        return None
    return OSError(int(match[3]), os.strerror(int(match[3])))


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace the content of a file. Readers find the old or the new content, never a part of it. Text is UTF-8.

    The content is written to a temporary file, flushed to disk and renamed. After a failure (OSError) the old content
    is unchanged. A killed process may leave a file whose name starts with `UNFINISHED`.
    """
    temporary = path.with_name(f"{UNFINISHED}{path.name}-{secrets.token_hex(4)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with _named_in_errors(path), open(handle, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
    fsync_path(path.parent)


def exchange(one: Path, other: Path) -> bool:
    """Swap the names of two files or folders in one step, so that a crash finds both under one name or the other.

    Return False if the system or the file system cannot do that. OSError if it fails.
    """
    swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if swap is None:
        return False
    if swap(_AT_CWD, os.fsencode(one), _AT_CWD, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EXDEV):
        return False
    raise OSError(number, os.strerror(number), str(other))


_AT_CWD, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of Linux."""


def lock_file(handle: int, *, wait: bool = False) -> None:
    """Lock an open file for this process, until the file is closed or the process ends.

    BlockingIOError if another process holds the lock, unless `wait` is set; OSError if the file system or the operating
    system has no such locks.
    """
    if fcntl is None:
        raise OSError(errno.ENOLCK, "the operating system has no file locks")
    fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
