"""The processes of a launch: who they are, and that none is left.

verl starts Ray, which starts workers, which start vLLM; some change their session, some outlive their parent. A process
belongs to a launch if it carries the launch's mark in its environment, is in the session of the living driver, or
descends from one that belongs. They are ended by id, and never by name; who started us never belongs.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from egpo.verl.launch.command import MARK

_PROC = Path("/proc")
_DRIVER_S, _REST_S, _KILL_S = 20.0, 3.0, 10.0
_LOOK_S = 0.1
_START = 19
"""Place of the start time among the fields of `stat`, from the state on."""


@dataclass(frozen=True, order=True)
class ProcessId:
    """The start time, in the kernel's ticks, tells a process from a later one of the same number."""

    pid: int
    start: int


@dataclass(frozen=True)
class _Seen:
    id: ProcessId
    parent: int
    session: int


class LaunchedProcesses:
    """All that belong to the launch `mark`, as far as they were ever seen, and are alive.

    The session counts while its leader, the driver, is alive: later its number may be another's.
    """

    def __init__(self, mark: str, known: Iterable[ProcessId] = (), driver: ProcessId | None = None) -> None:
        if not mark:
            raise ValueError("without a mark nobody can be told apart")
        self._mark, self._driver = mark, driver
        self._known = {*known, *([driver] if driver else [])}

    def look(self) -> set[ProcessId]:
        """Those alive now. To be called often: a process whose parent ends before it was seen has to carry the mark."""
        seen = {one.id.pid: one for one in _running()}
        alive = {one.id for one in seen.values()}
        self._known &= alive
        session = self._driver.pid if self._driver in alive else None
        found = {one.id for one in seen.values() if one.session == session or _is_marked(one.id.pid, self._mark)}
        self._known = (self._known | found) - _line_of(seen, os.getpid())
        while children := {one.id for one in seen.values() if one.parent in self._pids} - self._known:
            self._known |= children
        return set(self._known)

    @property
    def _pids(self) -> set[int]:
        return {one.pid for one in self._known}

    def end(self, hurried: Callable[[], bool] = lambda: False) -> None:
        """The driver is interrupted, which lets Ray end its own; then all are asked; then all are killed. Nobody is
        waited for once `hurried` says so."""
        driver = self.look() & {self._driver}
        _send(driver, signal.SIGINT)
        _wait_until(lambda: hurried() or not self.look() & driver, _DRIVER_S)
        _wait_until(lambda: hurried() or not self.look(), _REST_S)
        _send(self.look(), signal.SIGTERM)
        _wait_until(lambda: hurried() or not self.look(), _REST_S)
        _wait_until(lambda: not _send(self.look(), signal.SIGKILL), _KILL_S)


def _wait_until(over: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not over() and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def identified(pid: int) -> ProcessId:
    """A process that was just started by us, and so is there."""
    return ProcessId(pid, int(_stat(pid)[_START]))


def _line_of(seen: Mapping[int, _Seen], pid: int) -> set[ProcessId]:
    """A process and all that it descends from: the launcher, its shell, and so on up."""
    line: set[ProcessId] = set()
    while pid in seen and seen[pid].id not in line:
        line.add(seen[pid].id)
        pid = seen[pid].parent
    return line


def _send(processes: Collection[ProcessId], signum: signal.Signals) -> int:
    """To how many it was to be sent."""
    for one in processes:
        # Between the look and the signal another process may have taken the number.
        with suppress(ProcessLookupError, FileNotFoundError):
            if identified(one.pid) == one:
                os.kill(one.pid, signum)
    return len(processes)


def _running() -> Iterator[_Seen]:
    """Zombies are over, and wait only for their parents."""
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                fields = _stat(int(entry.name))
                if fields[0] not in ("Z", "X"):
                    yield _Seen(ProcessId(int(entry.name), int(fields[_START])), int(fields[1]), int(fields[3]))


def _stat(pid: int) -> list[str]:
    """From the state on: the name before it may hold anything."""
    text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()


def _is_marked(pid: int, mark: str) -> bool:
    try:
        variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{MARK}={mark}".encode() in variables


def shared_memory_of(processes: Iterable[ProcessId]) -> set[str]:
    """Files under /dev/shm that these processes have mapped or open."""
    found: set[str] = set()
    for one in processes:
        with suppress(OSError):
            maps = (_PROC / str(one.pid) / "maps").read_text(encoding="utf-8", errors="replace")
            found |= {line[line.index("/dev/shm/") :] for line in maps.splitlines() if "/dev/shm/" in line}
        with suppress(OSError):
            handles = [os.readlink(handle) for handle in (_PROC / str(one.pid) / "fd").iterdir()]
            found |= {target for target in handles if target.startswith("/dev/shm/")}
    return {path for path in found if not path.endswith(" (deleted)")}


def remove_shared_memory(paths: Iterable[str]) -> None:
    """Those that nobody uses any more: a killed run leaves them to fill the memory."""
    in_use = shared_memory_of(one.id for one in _running())
    for path in set(paths) - in_use:
        with suppress(OSError):
            os.unlink(path)
