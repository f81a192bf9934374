"""The guard, a process that runs a command and ends it when the process that started the guard (the starter) ends.

Usage: `python guard.py SECONDS FOLDER COMMAND...`. The command is ended when the starter closes the pipe on standard
input, when the starter ends in any way, or when the guard receives SIGTERM, SIGINT or SIGHUP: the guard sends SIGTERM
to the command, and after SECONDS kills its whole process group. Then the guard removes FOLDER. If the guard itself is
killed, the kernel kills the command (PR_SET_PDEATHSIG, on Linux). The exit status is the command's. This file imports
nothing of egpo: it is started by its path.
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
    # The command gets a process group of its own, which can be killed without this process. The session is the same.
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
        if os.getppid() != guard:  # the guard was killed before the line above
            os._exit(1)


def _is_held(starter: int) -> bool:
    """Wait up to 0.2 s, and return whether the starter is still alive and has its end of the pipe open."""
    ready, _, _ = select.select([sys.stdin.fileno()], [], [], _POLL_S)
    # A fork of the starter may keep the pipe open after the starter has ended: so the parent's id is compared too.
    return os.getppid() == starter and not (ready and not os.read(sys.stdin.fileno(), 1024))


def _has_ended(pid: int) -> bool:
    """Return whether a child process has ended, without collecting its exit status.

    Until the status is collected, the kernel gives the child's number, also that of its group, to no other process.
    """
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _ended(child: "subprocess.Popen[bytes]", grace_s: float) -> int:
    """End the command, if it still runs, and the processes that it left in its group; return its exit code."""
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
