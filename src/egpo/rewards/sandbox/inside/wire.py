"""Frames on file descriptors: a length in sixteen hexadecimal digits, then that many bytes.

A reader takes exactly one frame off the descriptor and never a byte more: what follows may be secret from the
process that is forked between two frames.
"""

from __future__ import annotations

import posix as os

HEADER = 16


class Closed(BaseException):
    """The other side has gone. No `except Exception` of a test may swallow it."""


class OversizedError(Exception):
    """A frame above the limit."""


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
    """The next frame. What is not a frame counts as a closed channel: the sender is beyond talking to."""
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
