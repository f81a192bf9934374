"""A long-running command, such as a model server, that ends with this process and whose output is read line by line."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from egpo.errors import EgpoError, how_it_ended
from egpo.processes import guard
from egpo.processes.table import session_listens, session_members

GRACE_S = 15.0
"""Seconds that a command has to end between SIGTERM and SIGKILL."""
_NUM_LINES_KEPT = 30
_READING_S = 5.0
"""Time limit, in seconds, for reading the rest of the output after the command has ended."""

OnLine = Callable[[str], None]
"""A function that is called with each line of the command's output."""


class GuardedProcess:
    """A command that runs until `end`, or until this process ends in any way.

    The command is the child of a guard process (`guard.py`), which ends it and removes `folder` when this process has
    ended. If the guard is killed, this process ends the remaining processes of the guard's session.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path, on_line: OnLine) -> None:
        self._on_line = on_line
        self._lines: deque[str] = deque(maxlen=_NUM_LINES_KEPT)
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
        """Return whether this command, or a process that it started, listens on the TCP port."""
        return session_listens(self._process.pid, port)

    @property
    def last_lines(self) -> list[str]:
        """The last lines of the output. After the end of the command, the last line states how it ended."""
        return list(self._lines)

    def end(self) -> None:
        """End the command and its children; return when they have ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if not self._gone.wait(GRACE_S + 5):
            kill_session(self._process.pid, with_leader=True)
            if not self._gone.wait(GRACE_S):
                what = f"process {self._process.pid} has not ended {GRACE_S:g} s after SIGKILL"
                fix = "a process that waits for a disk or a GPU cannot be killed: check the machine's disks and GPUs"
                raise EgpoError(what, where="the server", fix=fix)

    def _watch(self) -> None:
        """Wait for the end of the guard, and end the remaining processes of its session."""
        # WNOWAIT: until the guard's exit status is collected, its session's number is given to no other process.
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        kill_session(self._process.pid)
        self._reader.join(_READING_S)
        self._add_line(how_it_ended(self._process.wait()))
        self._gone.set()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._add_line(_printable(line.decode("utf-8", "backslashreplace").rstrip()))

    def _add_line(self, text: str) -> None:
        if text:
            self._lines.append(text)
            self._on_line(text)


def kill_session(session: int, *, with_leader: bool = False) -> None:
    """Kill every process of the session, its leader only if `with_leader`; wait up to one second for them to end."""
    for _ in range(20):  # repeatedly: a process may start another one during the loop
        spared = set() if with_leader else {session}
        if not (found := {one.pid for one in session_members(session)} - spared):
            return
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _printable(text: str) -> str:
    """Escape characters that a terminal would interpret."""
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)
