"""Frames on file descriptors: a length in sixteen hexadecimal digits, then that many bytes.

A reader reads exactly one frame and never a byte more: the next frame may be secret from the process that is forked
between the two.
"""

from __future__ import annotations

import posix as os

HEADER = 16


class Closed(BaseException):
    """An error for a connection whose other side has ended. Not an `Exception`, so that no test catches it by
    accident."""


class OversizedError(Exception):
    """An error for a frame that is longer than allowed."""


def read_exactly(fd: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            raise Closed
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_frame(fd: int, limit: int = 1 << 40) -> bytes:
    """Return the next frame. Invalid data counts as a closed channel: the sender cannot be trusted any more."""
    header = read_exactly(fd, HEADER)
    try:
        size = int(header, 16)
    except ValueError:
        raise Closed from None
    if not 0 <= size <= limit:
        raise OversizedError
    return read_exactly(fd, size)


def write_frame(fd: int, content: bytes) -> None:
    left = memoryview(frame(content))
    while left:
        left = left[os.write(fd, left) :]


def frame(content: bytes) -> bytes:
    return b"%016x" % len(content) + content
