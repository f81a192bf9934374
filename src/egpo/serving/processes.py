"""A server's process: its log, line by line, and its end."""

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from egpo.errors import EgpoError, how_it_ended
from egpo.serving import guard
from egpo.serving.listeners import kill_session, session_listens

_NUM_KEPT = 30
GRACE_S = 15.0
"""Seconds for a server to end in after SIGTERM, before it is killed."""
_READING_S = 5.0
"""Seconds for reading its log to the end when it has ended."""

Say = Callable[[str], None]
"""Told each line of a server's log."""


class ServerProcess:
    """A server that runs until `end`, or until this process ends in any way.

    It is the child of a guard (`guard.py`), which ends it and removes `folder` when this process is gone. Where the
    guard is killed, this process ends what is left of the guard's session.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path, say: Say) -> None:
        self._say = say
        self._lines: deque[str] = deque(maxlen=_NUM_KEPT)
        self._gone = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, guard.__file__, str(GRACE_S), str(folder.absolute()), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,  # so that Ctrl-C reaches this process alone
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def ended(self) -> bool:
        return self._gone.is_set()

    def listens_on(self, port: int) -> bool:
        return session_listens(self._process.pid, port)

    @property
    def last_lines(self) -> list[str]:
        """The last lines of its log; of a server that has ended, the last one says how."""
        return list(self._lines)

    def end(self) -> None:
        """Returns when it and its children are gone."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if not self._gone.wait(GRACE_S + 5):
            kill_session(self._process.pid, with_leader=True)
            if not self._gone.wait(GRACE_S):
                what = f"process {self._process.pid} has not ended {GRACE_S:g} s after SIGKILL"
                raise EgpoError(
                    what, where="the server", fix="a process that waits for a disk or a GPU cannot be ended"
                )

    def _watch(self) -> None:
        """Wait for the guard's end, and end what is left of its session."""
        # Not collected yet: so the session's number belongs to no other process.
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        kill_session(self._process.pid)
        self._reader.join(_READING_S)
        self._tell(how_it_ended(self._process.wait()))
        self._gone.set()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._tell(_printable(line.decode("utf-8", "backslashreplace").rstrip()))

    def _tell(self, text: str) -> None:
        if text:
            self._lines.append(text)
            self._say(text)


def _printable(text: str) -> str:
    """What a terminal would obey is shown as its escape."""
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)
