"""Runs a command, and ends it with whoever started this: `python guard.py SECONDS COMMAND...`.

Standard input is a pipe that the starter holds open. When it closes, because the starter let go, ended or was killed,
the command is asked to end, and after so many seconds it and all processes of its group are killed. Stands alone: it
is started by path.
"""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress


def main() -> None:
    assert os.getpgrp() == os.getpid(), "to be started in a session of its own: its group is killed at the end"
    grace_s, command = float(sys.argv[1]), sys.argv[2:]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_with_starter, args=(child, grace_s), daemon=True).start()
    _end_group(child.wait())


def _end_with_starter(child: "subprocess.Popen[bytes]", grace_s: float) -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    child.terminate()
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        child.kill()


def _end_group(code: int) -> None:
    """What the command leaves behind ends with it. This process is of the group: it speaks first."""
    with suppress(OSError):  # nobody may be left to hear it
        os.write(sys.stdout.fileno(), f"ended with code {code}\n".encode())
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
