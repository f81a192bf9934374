"""verl's process: it ends with its launcher, and a terminal's Ctrl-C does not reach it first."""

import os
import subprocess
from pathlib import Path

from egpo.errors import EgpoError
from egpo.verl.launch.command import Command

# prctl(PR_SET_PDEATHSIG, SIGTERM): a launcher killed with -9 can end nobody. No signal comes for one that was gone
# before it was asked for, hence the look at the parent. A shell's background jobs ignore SIGINT, which is how verl is
# asked to end.
_ENDS_WITH_LAUNCHER = """
import ctypes, os, signal, sys
launcher, *words = sys.argv[1:]
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(launcher):
    sys.exit("the launcher is gone")
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(words[0], words)
"""


def start(command: Command, log: Path) -> subprocess.Popen[bytes]:
    """In a session of its own; what it says goes to the end of `log`."""
    python = command.words[0]
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("ab") as output:
            return subprocess.Popen(
                [python, "-c", _ENDS_WITH_LAUNCHER, str(os.getpid()), *command.words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | dict(command.environment),
                start_new_session=True,
            )
    except OSError as error:
        raise EgpoError(f"verl cannot be started ({error.strerror})", where=python, fix="check verl.python") from error
