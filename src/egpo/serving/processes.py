"""A server's process: its log, line by line, and its end."""

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from egpo.serving import guard
from egpo.serving.listeners import session_listens

_NUM_KEPT = 30
GRACE_S = 15.0
"""For a server to end in when it is asked to."""
_READING_S = 5.0
"""For its log to be read to the end when it has ended."""

Say = Callable[[str], None]
"""Told each line of a server's log."""


class ServerProcess:
    """Runs from its creation to `end`, or to the end of this process, whatever that is: a guard sees to it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path, say: Say) -> None:
        self._say = say
        self._lines: deque[str] = deque(maxlen=_NUM_KEPT)
        self._process = subprocess.Popen(
            [sys.executable, guard.__file__, str(GRACE_S), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,  # so that Ctrl-C reaches us alone, and its group is its own
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def listens_on(self, port: int) -> bool:
        return session_listens(self._process.pid, port)

    @property
    def last_lines(self) -> list[str]:
        """Of one that has ended, its very last, which may still be on their way."""
        if self.ended:
            self._reader.join(_READING_S)
        return list(self._lines)

    def end(self) -> None:
        """Returns when it and its children are gone."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(GRACE_S + 5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        self._reader.join(_READING_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text = _printable(line.decode("utf-8", "backslashreplace").rstrip())
            if text:
                self._lines.append(text)
                self._say(text)


def _printable(text: str) -> str:
    """What a terminal would obey is shown as its escape."""
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)
