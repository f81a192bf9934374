"""The process table of Linux, read from /proc: which processes run, in which session, with which open files.

A process is identified by its number and its start time, so that a later process with the same number is not mistaken
for it. Zombies count as ended: they only wait for their parents to collect them. On a system without /proc no process
is found.
"""

import os
import signal
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_BOOT = _PROC / "sys/kernel/random/boot_id"
_STATE, _PARENT, _SESSION, _START = 0, 1, 3, 19
"""Positions of fields in /proc/PID/stat, counted from the process state."""
_LISTENING = "0A"


@dataclass(frozen=True, order=True)
class ProcessId:
    """The identity of a process: its number, and its start time in the kernel's ticks."""

    pid: int
    start: int


@dataclass(frozen=True)
class ProcessInfo:
    id: ProcessId
    parent: int
    session: int


def process_id(pid: int) -> ProcessId:
    """Return the identity of a process. OSError if no process has this number."""
    return ProcessId(pid, int(_stat(pid)[_START]))


def parent_of(pid: int) -> int | None:
    """Return the process id of a process's parent; None if the process has ended."""
    try:
        return int(_stat(pid)[_PARENT])
    except (OSError, IndexError):
        return None


def running_processes() -> Iterator[ProcessInfo]:
    """Yield every process that has not ended."""
    for entry in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # the process ended meanwhile
            fields = _stat(int(entry.name))
            if fields[_STATE] not in ("Z", "X"):
                id = ProcessId(int(entry.name), int(fields[_START]))
                yield ProcessInfo(id, int(fields[_PARENT]), int(fields[_SESSION]))


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command's name in parentheses, which may contain any character."""
    text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()


def process_title(pid: int) -> str:
    """Return the command line of a process, which Ray and vLLM replace with a title; "" if the process has ended."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def session_members(session: int) -> set[ProcessId]:
    return {one.id for one in running_processes() if one.session == session}


def has_variable(pid: int, name: str, value: str) -> bool:
    """Return whether a process was started with the environment variable `name` set to `value`."""
    try:
        variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{name}={value}".encode() in variables


def send_signal(processes: Collection[ProcessId], signum: signal.Signals) -> int:
    """Send a signal to each process that still runs; return the number of processes given, ended ones included."""
    for one in processes:
        # Since the table was read, another process may have been given the same number.
        with suppress(ProcessLookupError, FileNotFoundError):
            if process_id(one.pid) == one:
                os.kill(one.pid, signum)
    return len(processes)


def boot_id() -> str:
    """Return an id that changes at every start of the machine, which makes earlier process numbers invalid; "" if the
    system has none."""
    return _BOOT.read_text(encoding="ascii").strip() if _BOOT.exists() else ""


def session_listens(session: int, port: int) -> bool:
    """Return whether a process of that session listens on the TCP port; True if the system has no table of ports.

    This distinguishes a server that we started from another process that has taken the port.
    """
    tables = [path for name in ("tcp", "tcp6") if (path := _PROC / "net" / name).is_file()]
    if not tables:
        return True
    sockets = {f"socket:[{inode}]" for table in tables for inode in _listeners(table, port)}
    return any(not sockets.isdisjoint(_open_files(one.pid)) for one in session_members(session))


def _listeners(table: Path, port: int) -> Iterator[str]:
    """Yield the inodes of the sockets that listen on `port`.

    A line of the table is `0: 0100007F:1F90 00000000:0000 0A ...`; its tenth word is the inode.
    """
    for line in table.read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == _LISTENING and int(words[1].rpartition(":")[2], 16) == port:
            yield words[9]


def _open_files(pid: int) -> set[str]:
    try:
        return {str(handle.readlink()) for handle in (_PROC / str(pid) / "fd").iterdir()}
    except OSError:  # the process ended, or closed a file, meanwhile
        return set()


def shared_memory_of(processes: Iterable[ProcessId]) -> set[str]:
    """Return the files under /dev/shm that these processes have mapped or open."""
    found: set[str] = set()
    for one in processes:
        with suppress(OSError):
            maps = (_PROC / str(one.pid) / "maps").read_text(encoding="utf-8", errors="replace")
            found |= {line[line.index("/dev/shm/") :] for line in maps.splitlines() if "/dev/shm/" in line}
        found |= {target for target in _open_files(one.pid) if target.startswith("/dev/shm/")}
    return {path for path in found if not path.endswith(" (deleted)")}


def remove_shared_memory(paths: Iterable[str]) -> None:
    """Remove the files under /dev/shm that no process uses: those of a killed run would keep memory occupied."""
    in_use = shared_memory_of(one.id for one in running_processes())
    for path in set(paths) - in_use:
        with suppress(OSError):
            os.unlink(path)
