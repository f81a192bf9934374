"""A short command whose output is wanted: with a time limit, and ended with all processes that it has started."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from egpo.processes.table import session_members
from egpo.waits import waiting

_END_S = 2.0
"""Seconds that the processes of a command have to end between SIGTERM and SIGKILL: compilers remove their files."""


def run_limited(
    words: Sequence[str], *, wait: str, what: str, limit_s: float, variables: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command and return its exit code and output. `wait` is a row of WAITS; `what` names it in a line.

    subprocess.TimeoutExpired after `limit_s` seconds; OSError if the command cannot start. After the limit, an error or
    a signal, none of its processes is left: `subprocess.run` would end only the first one.
    """
    with (
        waiting(wait, what, limit_s=limit_s),
        subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
            env=None if variables is None else dict(variables),
            start_new_session=True,
        ) as process,
    ):
        try:
            out, err = process.communicate(timeout=limit_s)
        except BaseException:
            _end(process)
            raise
    return subprocess.CompletedProcess(list(words), process.returncode, out, err)


def _end(process: "subprocess.Popen[str]") -> None:
    """End the processes of the command's session: SIGTERM, then SIGKILL. Its first process is collected last."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signum)
        deadline = time.monotonic() + _END_S
        while session_members(process.pid) and time.monotonic() < deadline:
            time.sleep(0.02)
    process.wait()
