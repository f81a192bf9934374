"""BFCL executes what a model wrote (`eval`, over the calls of a multi-turn case): so it runs where it can do no harm.

Bubblewrap: the file system is read-only, homes and /tmp are empty but for what the job needs, processes are its own.
The network is the host's, since that is where the served model is.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from egpo.errors import warn_once

MISSING = (
    "BFCL executes calls that the model wrote, and bubblewrap (`bwrap`) does not work here: they run unprotected, as "
    "with BFCL alone. Debian, Ubuntu: apt-get install bubblewrap"
)


def enclosed(command: Sequence[str], work: Path, readable: Sequence[Path]) -> list[str]:
    """The command, able to write in `work` alone, and to read `readable` wherever it lies."""
    bwrap = shutil.which("bwrap")
    if bwrap is None or not _works(bwrap):
        warn_once("bfcl_enclosure", MISSING)
        return list(command)
    options = ["--die-with-parent", "--unshare-pid", "--unshare-ipc", "--ro-bind", "/", "/", "--dev", "/dev"]
    options += ["--proc", "/proc"]
    for hidden in _hidden():
        options += ["--tmpfs", hidden]
    for path in sorted({os.path.realpath(path) for path in readable} | {str(path.absolute()) for path in readable}):
        options += ["--ro-bind", path, path]
    whole = str(work.resolve())
    return [bwrap, *options, "--bind", whole, whole, "--chdir", whole, "--setenv", "HOME", whole, "--", *command]


def _hidden() -> list[str]:
    places = {"/tmp", "/home", "/root", "/var/tmp", "/run", str(Path.home())}
    return sorted(place for place in places if os.path.isdir(place) and place != "/")


@cache
def _works(bwrap: str) -> bool:
    """In some containers it is installed and forbidden."""
    tried = [bwrap, "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--", "/bin/true"]
    try:
        return subprocess.run(tried, capture_output=True, timeout=60).returncode == 0
    except subprocess.TimeoutExpired:
        return False
