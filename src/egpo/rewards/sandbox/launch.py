"""The run of a local supervisor: start it, send it a job, read its report, and enforce limits on time and memory.

Input and output are moved in short intervals. `Popen.communicate` with a timeout cannot be used for this: a second call
loses the input that the first had not sent.
"""

import mmap
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import IO

from egpo.errors import how_it_ended
from egpo.rewards.sandbox.cgroups import CgroupParent
from egpo.rewards.sandbox.charged_time import ChargedTime
from egpo.rewards.sandbox.jobs import (
    LATE,
    MEGABYTE,
    Place,
    Report,
    SandboxJob,
    framed,
    frames,
    has_started,
    read_outcomes,
    read_records,
)
from egpo.rewards.sandbox.payload import BOOTSTRAP, compiled
from egpo.waits import waiting

_ERROR_TAIL = 4000


class Pump:
    """The transfer of bytes to and from `process`. No call blocks for longer than its time limit."""

    def __init__(self, process: subprocess.Popen[bytes], content: bytes) -> None:
        self.process = process
        self.unsent = memoryview(content)
        self.out, self.err = bytearray(), bytearray()
        self.selector = selectors.DefaultSelector()
        for stream, event in (
            (process.stdin, selectors.EVENT_WRITE),
            (process.stdout, selectors.EVENT_READ),
            (process.stderr, selectors.EVENT_READ),
        ):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self.selector.register(stream, event)

    @property
    def finished(self) -> bool:
        """Whether the process has closed its standard output and its standard error."""
        streams = [key.fileobj for key in self.selector.get_map().values()]
        return self.process.stdout not in streams and self.process.stderr not in streams

    def move(self, seconds: float) -> None:
        """Send and receive the bytes that are ready, waiting at most `seconds` for the first one."""
        for key, _ in self.selector.select(seconds):
            stream = key.fileobj
            assert not isinstance(stream, int)
            if stream is self.process.stdin:
                self._send()
            else:
                self._receive(stream)  # type: ignore[arg-type]

    def send(self, content: bytes) -> None:
        """Send more, which `move` does, after what was not sent yet."""
        assert self.process.stdin is not None
        if not self.unsent:
            self.selector.register(self.process.stdin, selectors.EVENT_WRITE)
        self.unsent = memoryview(bytes(self.unsent) + content)

    def _send(self) -> None:
        assert self.process.stdin is not None
        try:
            self.unsent = self.unsent[os.write(self.process.stdin.fileno(), self.unsent[: 1 << 16]) :]
        except BrokenPipeError:
            self.unsent = self.unsent[:0]
        if not self.unsent:
            self.selector.unregister(self.process.stdin)

    def _receive(self, stream: IO[bytes]) -> None:
        content = os.read(stream.fileno(), 1 << 16)
        if not content:
            self._close(stream)
        elif stream is self.process.stdout:
            self.out += content
        else:
            self.err = (self.err + content)[-_ERROR_TAIL:]

    def _close(self, stream: IO[bytes]) -> None:
        self.selector.unregister(stream)
        stream.close()

    def close(self) -> None:
        """Close all streams, whether their data was sent or not."""
        for key in list(self.selector.get_map().values()):
            self._close(key.fileobj)  # type: ignore[arg-type]
        self.selector.close()
        assert self.process.stdin is not None
        self.process.stdin.close()


_TICK_S = 0.1
_PAGE = mmap.PAGESIZE
_COUNTED_FRAC = 15 / 16
"""Fraction of `memory_mb` for the cgroup. The rest is for what the kernel does not count, such as the cgroup itself."""
_START_S = 60.0
"""Time limit, in seconds, for the start of the sandbox, which takes milliseconds on an idle machine."""
_SPARE_S = 5.0
"""Seconds for the supervisor's own work, in addition to the program's limit, which the supervisor enforces."""
_MOST_WAITED_S = 120.0
"""Seconds of waiting for a processor that are not charged. A program that waits longer has a failed verdict."""

# -B: no .pyc files. -P: nothing of the current directory on the path. -s, -S: no site-packages.
PYTHON_OPTIONS = ("-B", "-P", "-s", "-S", "-c", BOOTSTRAP)

ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    # Threads count as processes, and a library that starts one thread for each core would reach the limit.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PATH": "/usr/bin:/bin",
    # The same program gives the same output twice, sets of strings included.
    "PYTHONHASHSEED": "0",
}


def launch(
    command: Sequence[str],
    job: SandboxJob,
    place: Place,
    pass_fds: Sequence[int] = (),
    cgroups: CgroupParent | None = None,
) -> Report:
    """Start the supervisor with `command`, send it the job, and return its report. None of its processes is left.

    With `cgroups` it runs in a new cgroup there, limited to `memory_mb` unless the address space is limited instead.
    """
    if cgroups is None:
        # With the filter, the program is one process, and the limit on its address space is enough.
        limit = float("inf") if place.one_process_filter else job.limits.memory_mb * MEGABYTE
        return _launch(list(command), job, place, pass_fds, lambda pid: resident_bytes(pid) > limit)
    limit_bytes = int(job.limits.memory_mb * MEGABYTE * _COUNTED_FRAC)
    cgroup = cgroups.make(None if place.one_process_filter else limit_bytes)
    try:
        report = _launch(cgroup.entering(list(command)), job, place, pass_fds, lambda _: cgroup.killed_for_memory())
        report = replace(report, peak_bytes=cgroup.peak_bytes())
        return _blamed_on_memory(report) if cgroup.killed_for_memory() else report
    finally:
        cgroup.remove()


def _launch(
    command: list[str], job: SandboxJob, place: Place, pass_fds: Sequence[int], is_over_memory: Callable[[int], bool]
) -> Report:
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        pass_fds=pass_fds,
        start_new_session=True,
    )
    pump = Pump(process, framed([compiled(job.work.kind), *frames(job, replace(place, asks_host=True))]))
    watch = _Watch(pump, job, ChargedTime(process.pid, supervisor_depth=int(place.private)), is_over_memory)
    try:
        with waiting("sandbox", "a program in the sandbox", limit_s=_START_S + watch.allowed_s + _MOST_WAITED_S):
            stopped = watch.until_the_end()
        if stopped == "timeout" and not has_started(pump.out):
            return Report((), failure=f"the sandbox did not start within {_START_S:.0f} s")
        outcomes, charged_s = read_outcomes(bytes(pump.out)), watch.time.charged_s
        if stopped == "busy":
            waited = f"the program waited for a processor for {_MOST_WAITED_S:.0f} s: too much runs on this machine"
            return Report(outcomes, failure=waited, charged_s=charged_s)
        failure = "" if stopped else _failure(process, bytes(pump.err))
        return Report(outcomes, stopped, failure, charged_s=charged_s)
    finally:
        _end(process)
        pump.close()
        process.wait()


def _blamed_on_memory(report: Report) -> Report:
    """Return the report with `memory` as the cause, for a sandbox in which the kernel killed a process for memory.

    If the killed process was a child without which the program continued, the last outcome becomes `memory`. (In a
    cgroup of version 2 the kernel kills the whole sandbox at once.)
    """
    outcomes = tuple(
        replace(outcome, status="memory")
        if outcome.status == "died" or (outcome.status == "signal" and outcome.code == signal.SIGKILL)
        else outcome
        for outcome in report.outcomes
    )
    if report.failure or report.stopped:
        return replace(report, outcomes=outcomes, stopped=report.stopped or "memory", failure="")
    if outcomes and not any(outcome.status == "memory" for outcome in outcomes):
        outcomes = (*outcomes[:-1], replace(outcomes[-1], status="memory", output=b""))
    return replace(report, outcomes=outcomes)


class _Watch:
    """The watch over a sandbox until the end of its report, with its limits on time and memory.

    It also answers the supervisor, which asks at the end of a test's time how long the sandbox has waited.
    """

    def __init__(
        self, pump: Pump, job: SandboxJob, charged: ChargedTime, is_over_memory: Callable[[int], bool]
    ) -> None:
        self.pump, self.time, self.is_over_memory = pump, charged, is_over_memory
        self.allowed_s = min(job.limits.total_s, job.limits.wall_s * job.work.size) + _SPARE_S
        self.started = False
        self.records_end = 0
        self.deadline = time.monotonic() + _START_S

    def until_the_end(self) -> str:
        """Return the limit that was exceeded before the end, `timeout`, `memory` or `busy`; or ""."""
        next_look = time.monotonic() + _TICK_S
        while not self.pump.finished:
            self.pump.move(_TICK_S)
            self._read_records()
            if time.monotonic() > next_look:
                if stopped := self._over_a_limit():
                    return stopped
                next_look = time.monotonic() + _TICK_S
        return ""

    def _read_records(self) -> None:
        for record in read_records(self.pump.out, self.records_end):
            self.records_end = record.end
            if not self.started:
                self.started, self.deadline = True, time.monotonic() + self.allowed_s + _MOST_WAITED_S
                self.time.start()
            elif record.status == LATE:
                self.pump.send(framed([b"%.3f" % self.time.waited_in_test_s()]))
            else:
                self.time.start_test()

    def _over_a_limit(self) -> str:
        if self.started:
            self.time.look()
            if self.time.charged_s > self.allowed_s:
                return "timeout"
        if time.monotonic() > self.deadline:
            # Processes that end between two looks could keep one of their own from running, unseen.
            return "busy" if self.started and self.time.num_processes <= 1 else "timeout"
        return "memory" if self.is_over_memory(self.pump.process.pid) else ""


def _failure(process: subprocess.Popen[bytes], err: bytes) -> str:
    """Return a description of the sandbox's own failure; "" if the supervisor exits with 0, after a full report."""
    try:
        code = process.wait(_SPARE_S)
    except subprocess.TimeoutExpired:
        return "the supervisor closed its output and did not exit"
    if code == 0:
        return ""
    said = err.decode("utf-8", "replace").strip().splitlines()
    return said[-1][:500] if said else f"the supervisor {how_it_ended(code)}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that still runs, and its descendants before it, in case they do not end with it."""
    from egpo.rewards.sandbox.inside.containment import descendants  # needs a Unix system, as the sandbox does

    if process.poll() is None:
        for pid in [*descendants(process.pid), process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue


def resident_bytes(pid: int) -> int:
    """Return the resident memory of all descendants of `pid`. Pages that a fork shares count once for each process."""
    from egpo.rewards.sandbox.inside.containment import descendants  # needs a Unix system, as the sandbox does

    total = 0
    for process in descendants(pid):
        try:
            with open(f"/proc/{process}/statm") as statm:
                total += int(statm.read().split()[1]) * _PAGE
        except (OSError, IndexError):
            continue
    return total
