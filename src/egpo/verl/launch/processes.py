"""Starts verl's process, finds all processes that it leads to, and ends them.

verl starts Ray, which starts workers, which start vLLM; some change their session, some outlive their parent. A process
belongs to a launch if it has the launch's mark in its environment, is in the session of the living driver, or descends
from one that belongs. Processes are ended by id, never by name; our own ancestors never belong.

verl ends with its launcher, and a terminal's Ctrl-C does not reach it directly. `verl/launch.json` lists the processes
of a run, so that the next launch can end them after a launcher was killed.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from egpo.errors import EgpoError
from egpo.files import write_atomically
from egpo.verl.launch.command import MARK, Command
from egpo.verl.launch.layout import VerlPlaces

# prctl(PR_SET_PDEATHSIG, SIGTERM): a launcher killed with -9 can end nobody. No signal comes for one that was gone
# before it was asked for, hence the pipe, whose other end is gone with the launcher. The parent's id would not do:
# `verl.python` may be a script that starts the interpreter as a child, or in a container; one that hands no pipe down
# goes without. A shell's background jobs ignore SIGINT, which is how verl is asked to end.
_ENDS_WITH_LAUNCHER = """
import ctypes, os, select, signal, sys
pipe, words = int(sys.argv[1]), sys.argv[2:]
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
try:
    if select.select([pipe], [], [], 0)[0]:
        sys.exit("the launcher is gone")
    os.close(pipe)
except OSError:
    pass
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(words[0], words)
"""


def start(command: Command, log: Path) -> subprocess.Popen[bytes]:
    """Start the command in a new session; its output is appended to `log`."""
    python = command.arguments[0]
    log.parent.mkdir(parents=True, exist_ok=True)
    pipe, _ = os.pipe()  # the other end stays open as long as we live, and nobody inherits it
    try:
        with log.open("ab") as output:
            return subprocess.Popen(
                [python, "-c", _ENDS_WITH_LAUNCHER, str(pipe), *command.arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | dict(command.environment),
                start_new_session=True,
                pass_fds=[pipe],
            )
    except OSError as error:
        raise EgpoError(f"verl cannot be started ({error.strerror})", where=python, fix="check verl.python") from error
    finally:
        os.close(pipe)


_PROC = Path("/proc")
_DRIVER_S, _REST_S, _KILL_S = 20.0, 3.0, 10.0
_LOOK_S = 0.1
_START = 19
"""Place of the start time among the fields of `stat`, from the state on."""


@dataclass(frozen=True, order=True)
class ProcessId:
    """A process id with its start time, in the kernel's ticks: a later process may get the same number."""

    pid: int
    start: int


@dataclass(frozen=True)
class _Seen:
    id: ProcessId
    parent: int
    session: int


class LaunchedProcesses:
    """The living processes of the launch `mark`, as far as they were seen.

    The session counts only while its leader, the driver, is alive: later the number may be reused.
    """

    def __init__(self, mark: str, known: Iterable[ProcessId] = (), driver: ProcessId | None = None) -> None:
        if not mark:
            raise ValueError("an empty mark would match every process")
        self._mark, self._driver = mark, driver
        self._known = {*known, *([driver] if driver else [])}

    def look(self) -> set[ProcessId]:
        """Return those alive now. Call it often: a process whose parent ended before it was seen needs the mark."""
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
        """End all processes: interrupt the driver, so that Ray ends its own; then SIGTERM; then SIGKILL.

        Nothing is waited for once `hurried` returns True.
        """
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
    """Return the id with the start time of a living process."""
    return ProcessId(pid, int(_stat(pid)[_START]))


def _line_of(seen: Mapping[int, _Seen], pid: int) -> set[ProcessId]:
    """Return a process and its ancestors: the launcher, its shell, and so on."""
    line: set[ProcessId] = set()
    while pid in seen and seen[pid].id not in line:
        line.add(seen[pid].id)
        pid = seen[pid].parent
    return line


def _send(processes: Collection[ProcessId], signum: signal.Signals) -> int:
    """Send a signal to the processes, and return their number."""
    for one in processes:
        # Between the look and the signal another process may have taken the number.
        with suppress(ProcessLookupError, FileNotFoundError):
            if identified(one.pid) == one:
                os.kill(one.pid, signum)
    return len(processes)


def _running() -> Iterator[_Seen]:
    """Yield the running processes, without zombies."""
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                fields = _stat(int(entry.name))
                if fields[0] not in ("Z", "X"):
                    yield _Seen(ProcessId(int(entry.name), int(fields[_START])), int(fields[1]), int(fields[3]))


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on. The name before them may contain any character."""
    text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()


def _is_marked(pid: int, mark: str) -> bool:
    try:
        variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{MARK}={mark}".encode() in variables


def shared_memory_of(processes: Iterable[ProcessId]) -> set[str]:
    """Return the files under /dev/shm that these processes have mapped or open."""
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
    """Remove the files that no process uses any more: a killed run would leave them in memory."""
    in_use = shared_memory_of(one.id for one in _running())
    for path in set(paths) - in_use:
        with suppress(OSError):
            os.unlink(path)


_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class LaunchRecord:
    """The content of `launch.json`. `boot`: process ids are meaningless after a reboot."""

    launch_id: str
    boot: str
    processes: tuple[ProcessId, ...] = ()
    shared_memory: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        values = vars(self) | {"processes": [[one.pid, one.start] for one in self.processes]}
        write_atomically(path, json.dumps(values, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "LaunchRecord":
        values = json.loads(path.read_text(encoding="utf-8"))
        processes = tuple(ProcessId(*one) for one in values["processes"])
        return cls(**{**values, "processes": processes, "shared_memory": tuple(values["shared_memory"])})


@dataclass(frozen=True)
class Leftovers:
    """How many processes were still running, and the file with metrics that are not recorded yet."""

    num_processes: int
    metrics: Path


def boot_id() -> str:
    return _BOOT.read_text(encoding="ascii").strip() if _BOOT.exists() else ""


def end_leftovers(places: VerlPlaces) -> Leftovers | None:
    """End the processes that a killed launcher of this run left, and free its memory; None if none was killed.

    Call it with the run's lock held: then no launcher of the run is alive.
    """
    if not places.launch.exists():
        return None
    record = LaunchRecord.read(places.launch)
    num_left = 0
    if record.boot == boot_id():
        left = LaunchedProcesses(record.launch_id, record.processes)
        num_left = len(left.look())
        left.end()
        remove_shared_memory(record.shared_memory)
    return Leftovers(num_left, places.metrics_of(record.launch_id))


def described(launch_id: str, processes: Iterable[ProcessId], shared: Iterable[str]) -> LaunchRecord:
    return LaunchRecord(launch_id, boot_id(), tuple(sorted(processes)), tuple(sorted(shared)))
