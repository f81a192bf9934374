"""Starts a local supervisor, feeds it a job, and holds the whole of it to its time and memory."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence

from egpo.errors import how_it_ended
from egpo.rewards.sandbox.inside.containment import descendants
from egpo.rewards.sandbox.job import Job, Place, Report, framed, frames, has_started, read_outcomes
from egpo.rewards.sandbox.limits import MEGABYTE
from egpo.rewards.sandbox.payload import BOOTSTRAP, compiled
from egpo.rewards.sandbox.pump import Pump

_TICK_S = 0.1
_PAGE = os.sysconf("SC_PAGE_SIZE")
_START_S = 60.0
"""For the start of the sandbox itself: milliseconds, but on a machine that has other things to do."""
_SPARE_S = 5.0
"""For the supervisor's own work, on top of what the program may take; it ends a program that takes longer itself."""

# -B: no .pyc files. -P: nothing of the current directory on the path. -s, -S: no site-packages.
PYTHON_OPTIONS = ("-B", "-P", "-s", "-S", "-c", BOOTSTRAP)

ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    # Threads count as processes, and a library that starts one for each core would meet the limit.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PATH": "/usr/bin:/bin",
    # The same program gives the same output twice, sets of strings included.
    "PYTHONHASHSEED": "0",
}


def launch(command: Sequence[str], job: Job, place: Place, pass_fds: Sequence[int] = ()) -> Report:
    """Run the supervisor by `command`, and read its report. Nothing of it is left when this returns."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        pass_fds=pass_fds,
        start_new_session=True,
    )
    pump = Pump(process, framed([compiled(job.work.kind), *frames(job, place)]))
    try:
        stopped = _watch(pump, job)
        if stopped == "timeout" and not has_started(pump.out):
            return Report((), failure=f"the sandbox did not start within {_START_S:.0f} s")
        failure = "" if stopped else _failure(process, bytes(pump.err))
        return Report(read_outcomes(bytes(pump.out)), stopped, failure)
    finally:
        _end(process)
        pump.close()
        process.wait()


def _watch(pump: Pump, job: Job) -> str:
    """Wait for the end of the report. The limit that stopped it before, or nothing."""
    allowed_s = min(job.limits.total_s, job.limits.wall_s * job.work.size) + _SPARE_S
    next_look, deadline, started = time.monotonic() + _TICK_S, time.monotonic() + _START_S, False
    while not pump.finished:
        pump.move(_TICK_S)
        if not started and has_started(pump.out):
            started, deadline = True, time.monotonic() + allowed_s
        if time.monotonic() > next_look:
            if stopped := _over_the_limit(pump.process.pid, job, deadline):
                return stopped
            next_look = time.monotonic() + _TICK_S
    return ""


def _over_the_limit(pid: int, job: Job, deadline: float) -> str:
    if time.monotonic() > deadline:
        return "timeout"
    return "memory" if resident_bytes(pid) > job.limits.memory_mb * MEGABYTE else ""


def _failure(process: subprocess.Popen[bytes], err: bytes) -> str:
    """The supervisor leaves with 0 when it has reported everything; anything else is the sandbox's own failure."""
    try:
        code = process.wait(_SPARE_S)
    except subprocess.TimeoutExpired:
        return "the supervisor closed its report and did not end"
    if code == 0:
        return ""
    said = err.decode("utf-8", "replace").strip().splitlines()
    return said[-1][:500] if said else f"the supervisor {how_it_ended(code)}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left: the processes below first, in case that nothing else holds them together."""
    if process.poll() is None:
        for pid in [*descendants(process.pid), process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue


def resident_bytes(pid: int) -> int:
    """Resident memory of all processes below `pid`. Pages that a fork shares count once for each."""
    total = 0
    for process in descendants(pid):
        try:
            with open(f"/proc/{process}/statm") as statm:
                total += int(statm.read().split()[1]) * _PAGE
        except (OSError, IndexError):
            continue
    return total
