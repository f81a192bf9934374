"""Feeds a process and collects what it says, a slice of time at a time.

`Popen.communicate` with a time-out cannot be used for this: called again, it forgets the input that it had not sent.
"""

import os
import selectors
import subprocess
from typing import IO

_ERROR_TAIL = 4000


class Pump:
    """Moves bytes between us and `process`. Nothing blocks for longer than the time it is given."""

    def __init__(self, process: subprocess.Popen[bytes], content: bytes) -> None:
        self.process = process
        self.unsent = memoryview(content)
        self.out, self.err = bytearray(), bytearray()
        self.selector = selectors.DefaultSelector()
        for stream, event in (
            (process.stdin, selectors.EVENT_WRITE),
            (process.stdout, selectors.EVENT_READ),
            (process.stderr, selectors.EVENT_READ),
        ):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self.selector.register(stream, event)

    @property
    def finished(self) -> bool:
        """The process has closed its output and its errors."""
        streams = [key.fileobj for key in self.selector.get_map().values()]
        return self.process.stdout not in streams and self.process.stderr not in streams

    def move(self, seconds: float) -> None:
        """Move what can be moved, waiting this long for the first byte."""
        for key, _ in self.selector.select(seconds):
            stream = key.fileobj
            assert not isinstance(stream, int)
            if stream is self.process.stdin:
                self._send()
            else:
                self._receive(stream)  # type: ignore[arg-type]

    def _send(self) -> None:
        assert self.process.stdin is not None
        try:
            self.unsent = self.unsent[os.write(self.process.stdin.fileno(), self.unsent[: 1 << 16]) :]
        except BrokenPipeError:
            self.unsent = self.unsent[:0]
        if not self.unsent:
            self._close(self.process.stdin)

    def _receive(self, stream: IO[bytes]) -> None:
        content = os.read(stream.fileno(), 1 << 16)
        if not content:
            self._close(stream)
        elif stream is self.process.stdout:
            self.out += content
        else:
            self.err = (self.err + content)[-_ERROR_TAIL:]

    def _close(self, stream: IO[bytes]) -> None:
        self.selector.unregister(stream)
        stream.close()

    def close(self) -> None:
        """Let go of everything, sent or not."""
        for key in list(self.selector.get_map().values()):
            self._close(key.fileobj)  # type: ignore[arg-type]
        self.selector.close()
