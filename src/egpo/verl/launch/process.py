"""verl's process: it ends with its launcher, and a terminal's Ctrl-C does not reach it first."""

import os
import subprocess
from pathlib import Path

from egpo.errors import EgpoError
from egpo.verl.launch.command import Command

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
    """In a session of its own; what it says goes to the end of `log`."""
    python = command.words[0]
    log.parent.mkdir(parents=True, exist_ok=True)
    pipe, _ = os.pipe()  # the other end stays open as long as we live, and nobody inherits it
    try:
        with log.open("ab") as output:
            return subprocess.Popen(
                [python, "-c", _ENDS_WITH_LAUNCHER, str(pipe), *command.words],
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
