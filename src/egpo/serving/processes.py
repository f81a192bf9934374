"""A port that nobody listens on, found out before a server takes a minute to start.

The processes of a server's session, as /proc shows them: which one listens on a port, and how all are ended.

A server's process: its log, line by line, and its end.
"""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from egpo.errors import EgpoError, InputError, how_it_ended
from egpo.serving import guard


def free_port(host: str, port: int) -> int:
    """`port` itself, or any for 0. An InputError where it is taken, or is none for us."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # A port that was closed a moment ago may be had again, as servers do it; one that is listened on may not.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    except socket.gaierror as error:
        raise InputError(f"no such host ({error.strerror})", where=f"--host {host}", fix="as in 127.0.0.1") from error
    except (OSError, OverflowError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        what = "the port is in use" if taken else f"cannot be listened on ({getattr(error, 'strerror', None) or error})"
        fix = "choose another, or 0 for any that is free"
        raise InputError(what, where=f"{host}:{port}", fix=fix) from error


_PROC = Path("/proc")
_LISTENS = "0A"


def session_listens(session: int, port: int) -> bool:
    """Return whether a process of that session listens on the port, and not one of another server that took the port
    meanwhile. True where the system does not show it (only Linux has /proc)."""
    tables = [path for name in ("tcp", "tcp6") if (path := _PROC / "net" / name).is_file()]
    if not tables:
        return True
    sockets = {f"socket:[{inode}]" for table in tables for inode in _listeners(table, port)}
    return any(not sockets.isdisjoint(_open_files(pid)) for pid in _processes_of(session))


def kill_session(session: int, *, with_leader: bool = False) -> None:
    """Kill every process of the session with SIGKILL, its leader only when asked to; wait up to a second for them."""
    for _ in range(20):  # again, because a process may start another while this looks
        spared = set() if with_leader else {session}
        if not (found := {int(process.name) for process in _processes_of(session)} - spared):
            return
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _listeners(table: Path, port: int) -> Iterator[str]:
    """Inodes of the sockets. A line: `0: 0100007F:1F90 00000000:0000 0A ...`, the inode is its tenth word."""
    for line in table.read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == port:
            yield words[9]


def _processes_of(session: int) -> Iterator[Path]:
    for process in _PROC.glob("[0-9]*"):
        try:
            words = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if words[3] == str(session) and words[0] != "Z":
            yield process


def _open_files(process: Path) -> set[str]:
    try:
        return {str(handle.readlink()) for handle in (process / "fd").iterdir()}
    except OSError:  # it ended meanwhile, or a file was closed: the next look will tell
        return set()


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
