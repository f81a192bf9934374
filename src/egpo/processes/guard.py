"""Run a command and end it together with the process that started this: `python guard.py SECONDS FOLDER COMMAND...`.

The command is ended when the starter closes the pipe on standard input, when the starter ends in any way, or when this
process receives SIGTERM, SIGINT or SIGHUP: it is sent SIGTERM, and after SECONDS its whole process group is killed.
Then FOLDER is removed. Where this process itself is killed, the kernel kills the command (PR_SET_PDEATHSIG, on Linux).
The exit status is the command's. This file imports nothing of egpo: it is started by its path.
"""

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

_POLL_S = 0.2
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def main() -> None:
    grace_s, folder, command = float(sys.argv[1]), sys.argv[2], sys.argv[3:]
    signals: list[int] = []
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda number, frame: signals.append(number))
    starter, guard = os.getppid(), os.getpid()
    # A group of its own: it can be killed whole without this process. The session stays the same.
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=lambda: _die_with_parent(guard)
    )
    while not _has_ended(child.pid) and not signals and _is_held(starter):
        pass
    code = _ended(child, grace_s)
    shutil.rmtree(folder, ignore_errors=True)
    _exit_like(code)


def _die_with_parent(guard: int) -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # it was killed before the line above
            os._exit(1)


def _is_held(starter: int) -> bool:
    """Wait a moment, and return whether the starter still lives and holds the pipe."""
    ready, _, _ = select.select([sys.stdin.fileno()], [], [], _POLL_S)
    # A fork of the starter may hold the pipe after its death: hence the parent's number.
    return os.getppid() == starter and not (ready and not os.read(sys.stdin.fileno(), 1024))


def _has_ended(pid: int) -> bool:
    """Leave it uncollected: its number, which is its group's, is not given to another process before that."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _ended(child: "subprocess.Popen[bytes]", grace_s: float) -> int:
    """End the command, if it still runs, and what it has left behind; return its exit code."""
    deadline = time.monotonic() + grace_s
    if not _has_ended(child.pid):
        os.kill(child.pid, signal.SIGTERM)
    while not _has_ended(child.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def _exit_like(code: int) -> None:
    if code >= 0:
        sys.exit(code)
    import resource  # here, so that the module can be imported on Windows, where it cannot run

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # SIGKILL has no handler to reset
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main()
