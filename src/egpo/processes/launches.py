"""A launch: a command (the driver) that starts many processes, all of which can be found and ended.

verl starts Ray, which starts workers, which start vLLM; some change their session, some outlive their parent. A process
belongs to a launch if it has the launch's id in its environment, is in the session of the driver while the driver is
alive, or descends from a process of the launch. Processes are ended by identity, never by name. This process and its
ancestors never belong to a launch.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from egpo.processes.table import ProcessId, ProcessInfo, has_variable, running_processes, send_signal

MARK = "EGPO_LAUNCH"
"""The environment variable with the id of a launch. Processes that have it belong to that launch."""
_DRIVER_S, _REST_S, _KILL_S = 20.0, 3.0, 10.0
_LOOK_S = 0.1

# prctl(PR_SET_PDEATHSIG, SIGTERM): the kernel ends the command if the launcher is killed with SIGKILL. No signal comes
# if the launcher ended before prctl: so a pipe is checked too, whose other end closes with the launcher. The parent's
# id cannot be checked instead: the python may be a script that starts the interpreter as a child, or in a container.
# If such a script does not pass the pipe on, the check is skipped. SIGINT, which asks the driver to end, is reset,
# because background jobs of a shell ignore it.
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


def start_in_session(words: Sequence[str], variables: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command, whose first word is a Python interpreter, in a session of its own that ends with this process.

    `variables` are added to the environment. The output is appended to `log`. OSError if the command cannot start.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    pipe, _ = os.pipe()  # the other end stays open as long as this process lives, and no other process inherits it
    try:
        with log.open("ab") as output:
            return subprocess.Popen(
                [words[0], "-c", _ENDS_WITH_LAUNCHER, str(pipe), *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | dict(variables),
                start_new_session=True,
                pass_fds=[pipe],
            )
    finally:
        os.close(pipe)


class LaunchedProcesses:
    """The processes of the launch with the id `mark` that were found and are still alive.

    Membership in the driver's session counts only while the driver is alive: afterwards the session's number may be
    given to another session.
    """

    def __init__(self, mark: str, known: Iterable[ProcessId] = (), driver: ProcessId | None = None) -> None:
        if not mark:
            raise ValueError("an empty mark would match unrelated processes")
        self._mark, self._driver = mark, driver
        self._known = {*known, *([driver] if driver else [])}

    def look(self) -> set[ProcessId]:
        """Find the processes of the launch that are alive now, and return them.

        Call this often: a process without the launch's id in its environment is not found if its parent ended before
        the process was first seen.
        """
        seen = {one.id.pid: one for one in running_processes()}
        alive = {one.id for one in seen.values()}
        self._known &= alive
        session = self._driver.pid if self._driver in alive else None
        found = {
            one.id for one in seen.values() if one.session == session or has_variable(one.id.pid, MARK, self._mark)
        }
        self._known = (self._known | found) - _ancestry(seen, os.getpid())
        while children := {one.id for one in seen.values() if one.parent in self._pids} - self._known:
            self._known |= children
        return set(self._known)

    @property
    def _pids(self) -> set[int]:
        return {one.pid for one in self._known}

    def end(self, hurried: Callable[[], bool] = lambda: False) -> None:
        """End all processes of the launch: SIGINT to the driver, which lets Ray end its own processes, then SIGTERM to
        all that are left, then SIGKILL.

        Once `hurried` returns True, the waits between these signals are skipped.
        """
        driver = self.look() & {self._driver}
        send_signal(driver, signal.SIGINT)
        _wait_until(lambda: hurried() or not self.look() & driver, _DRIVER_S)
        _wait_until(lambda: hurried() or not self.look(), _REST_S)
        send_signal(self.look(), signal.SIGTERM)
        _wait_until(lambda: hurried() or not self.look(), _REST_S)
        _wait_until(lambda: not send_signal(self.look(), signal.SIGKILL), _KILL_S)


def _wait_until(condition: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def _ancestry(seen: Mapping[int, ProcessInfo], pid: int) -> set[ProcessId]:
    """Return a process and its ancestors: the launcher, its shell, and so on."""
    line: set[ProcessId] = set()
    while pid in seen and seen[pid].id not in line:
        line.add(seen[pid].id)
        pid = seen[pid].parent
    return line
