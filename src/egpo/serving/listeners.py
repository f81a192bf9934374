"""The processes of a server's session, as /proc shows them: which one listens on a port, and how all are ended."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

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
