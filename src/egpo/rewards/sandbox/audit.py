"""The audit of a sandbox, which runs programs that try to escape and reports which of them were contained."""

import mmap
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from egpo.rewards.sandbox.escapes import ESCAPES, GOT_THROUGH, Attempt
from egpo.rewards.sandbox.jobs import MEGABYTE, Checks, Limits, Report, SandboxJob, Scripts
from egpo.rewards.sandbox.memory_attempts import HOLDS_MEMORY
from egpo.rewards.sandbox.selection import Sandbox
from egpo.rewards.sandbox.tiers import interpreter

ATTEMPTS = (*ESCAPES, *HOLDS_MEMORY)
AUDIT_LIMITS = Limits(cpu_s=1, total_s=20.0, memory_mb=256, processes=8, tmp_mb=32, file_mb=16, files=1000)


@dataclass(frozen=True)
class EscapeFinding:
    """The result of one attempt: what the program or the sandbox reported, and whether the program was contained."""

    attempt: str
    happened: str
    contained: bool


@contextmanager
def laid_out_bait() -> Iterator[dict[str, object]]:
    """Prepare targets on the host that the programs try to reach (a file, a process, a port, a Unix socket and an
    environment variable), yield their names, and remove them at the end."""
    marker = "egpo-bait-" + secrets.token_hex(8)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="egpo-bait-"))
        file = Path(folder) / "secret"
        file.write_text(marker)
        port = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(f"{folder}/socket")
        unix.listen()
        sleeper = stack.enter_context(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        stack.callback(sleeper.kill)
        os.environ["EGPO_BAIT"] = marker
        stack.callback(os.environ.pop, "EGPO_BAIT", None)
        home = str(Path.home())
        # If the interpreter is in a home directory, the folder that leads to it is visible in the sandbox.
        allowed = [Path(interpreter()).relative_to(home).parts[0]] if interpreter().startswith(home + "/") else []
        yield {
            "file": str(file), "folder": folder, "home": home, "allowed": allowed, "marker": marker,
            "memory_mb": AUDIT_LIMITS.memory_mb, "pid": sleeper.pid, "port": port.getsockname()[1],
            "socket": f"{folder}/socket", "variable": "EGPO_BAIT",
        }  # fmt: skip


def audit(sandbox: Sandbox) -> Iterator[EscapeFinding]:
    """Run every attempt in the sandbox, and yield a finding for each."""
    with laid_out_bait() as bait:
        for attempt in ATTEMPTS:
            yield try_to_escape(sandbox, attempt, bait)


def try_to_escape(sandbox: Sandbox, attempt: Attempt, bait: dict[str, object]) -> EscapeFinding:
    return judge_attempt(attempt, run_attempt(sandbox, attempt, bait), str(bait["marker"]))


def run_attempt(sandbox: Sandbox, attempt: Attempt, bait: dict[str, object]) -> Report:
    """Run the program of an attempt in the sandbox: alone or, if it `forges`, against tests that it should fail."""
    work = _tests_to_forge() if attempt.forges else Scripts((b"",))
    program = attempt.program if attempt.forges else f"BAIT = {bait!r}\n{attempt.program}"
    return sandbox.run(SandboxJob(program, work, _limits(attempt)))


def judge_attempt(attempt: Attempt, report: Report, marker: str) -> EscapeFinding:
    """Return whether the program was contained.

    `marker`: the name of a file, or the last argument of a process, that an escaped program leaves on the host.
    """
    happened, end = _told(report)
    if attempt.forges:
        passed = [index for index, outcome in enumerate(report.outcomes) if outcome.status == "ok"]
        happened = f"tests passed: {passed}" if passed else happened
        return EscapeFinding(attempt.name, happened, not passed and not _broken(report))
    boasted = any(GOT_THROUGH.encode() in outcome.output for outcome in report.outcomes)
    unlimited = bool(attempt.ends) and end not in attempt.ends
    left_behind = _left_behind(marker)
    contained = not (boasted or unlimited or left_behind or _broken(report))
    return EscapeFinding(attempt.name, left_behind or happened, contained)


@dataclass(frozen=True)
class MemoryFinding:
    """The memory that several copies of one program held at once.

    `host_mb`: increase of the host's memory in use. `sandbox_mb`: the peak of one sandbox by its cgroup, 0 without
    one. `bound_mb`: the limit for all copies together.
    """

    attempt: str
    happened: str
    contained: bool
    host_mb: float
    sandbox_mb: float
    bound_mb: float


def measure_memory(sandbox: Sandbox, num_programs: int) -> Iterator[MemoryFinding]:
    """Run each program that tries to hold too much memory, several copies at once, and measure the host's memory.

    Nothing else may run on the host meanwhile. A program is contained if no copy succeeded and the host used at
    most `memory_mb` more for each copy.
    """
    bound_mb = float(num_programs * AUDIT_LIMITS.memory_mb)
    with laid_out_bait() as bait, ThreadPoolExecutor(num_programs) as pool:
        # A run that is not measured: the first run takes memory that all later runs share.
        list(pool.map(lambda _: sandbox.run(SandboxJob("", Scripts((b"",)))), range(num_programs)))
        for attempt in HOLDS_MEMORY:
            with PeakMemory() as memory:
                reports = list(
                    pool.map(lambda _, attempt=attempt: run_attempt(sandbox, attempt, bait), range(num_programs))
                )
            findings = [judge_attempt(attempt, report, str(bait["marker"])) for report in reports]
            worst = next((finding for finding in findings if not finding.contained), findings[0])
            host_mb, sandbox_mb = memory.rose_by_mb, max(report.peak_bytes for report in reports) / MEGABYTE
            contained = worst.contained and host_mb <= bound_mb
            yield MemoryFinding(attempt.name, worst.happened, contained, host_mb, sandbox_mb, bound_mb)


class PeakMemory:
    """The largest memory that the host uses during a `with` block, measured every two milliseconds."""

    def __enter__(self) -> "PeakMemory":
        time.sleep(0.3)  # until earlier processes have returned their memory
        self.start_mb = self.peak_mb = min(used_memory_mb() for _ in range(20))
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def _watch(self) -> None:
        while not self.ended.wait(0.002):
            self.peak_mb = max(self.peak_mb, used_memory_mb())

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self.thread.join()

    @property
    def rose_by_mb(self) -> float:
        return self.peak_mb - self.start_mb


def used_memory_mb() -> float:
    """Return the memory of the host that is in use, by processes and by the kernel, without its cache of files."""
    with open("/proc/meminfo") as meminfo, open("/proc/zoneinfo") as zoneinfo:
        return _used_mb(meminfo.read(), zoneinfo.read())


def _used_mb(meminfo: str, zoneinfo: str) -> float:
    """Compute the memory in use from the contents of /proc/meminfo and /proc/zoneinfo.

    Pages that were just freed wait on lists of each processor, on which Linux 6.7 and later keep hundreds of megabytes.
    Neither `MemFree` nor `MemAvailable` counts them.
    """
    kilobytes = {name: int(value.split()[0]) for name, value in (line.split(":") for line in meminfo.splitlines())}
    on_lists = sum(int(line.split()[1]) for line in zoneinfo.splitlines() if line.lstrip().startswith("count:"))
    files = kilobytes["Buffers"] + kilobytes["Cached"] - kilobytes["Shmem"]
    swapped = kilobytes["SwapTotal"] - kilobytes["SwapFree"]
    free = kilobytes["MemFree"] + on_lists * mmap.PAGESIZE // 1024
    return (kilobytes["MemTotal"] - free - files + swapped) / 1024


def _limits(attempt: Attempt) -> Limits:
    return replace(AUDIT_LIMITS, wall_s=attempt.wall_s)


def _tests_to_forge() -> Checks:
    """Return tests with a random expected value, one in each form that a test can have."""
    right = (secrets.randbelow(10**6) + 10**6) * 1000003 + 17
    call = {"fn_name": "f", "args": [1], "kwargs": {}, "expected": [right]}
    snippets = (
        f"assert f(1) == {right}",
        f"assert abs(f(1) - {right}) < 1e-6",
        f"assert all(a == b for a, b in zip(map(f, [1, 2]), [{right}, {right}], strict=True))",
        f"def check(g):\n    assert g(1) == {right} and isinstance(g(1), int)\ncheck(f)",
        f"assert {right} in f(1)",
        f"with f(1) as value:\n    assert value == {right}",
        # The program must not be able to catch an exception of the test itself.
        f"value = f(1)\ntry:\n    assert value == {right}\nexcept E:\n    pass",
        f"import contextlib\nvalue = f(1)\nwith contextlib.suppress(E):\n    assert value == {right}",
        f"import asyncio\nassert asyncio.run(f(1)) == {right}",
        f"import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(1), {right})\n"
        "done = unittest.TestResult()\nT('test').run(done)\nassert done.wasSuccessful()",
    )
    return Checks((call, *snippets), ("E", "f"))


def _broken(report: Report) -> bool:
    """Return whether the sandbox itself failed or reported nothing, so that the attempt proves nothing."""
    return bool(report.failure) or not (report.outcomes or report.stopped)


def _told(report: Report) -> tuple[str, str]:
    """Return two texts: a line about what happened, and the status with which the program ended."""
    if report.stopped or _broken(report):
        return report.failure or f"stopped: {report.stopped or 'no report'}", report.stopped
    last = report.outcomes[-1]
    said = last.output.decode("utf-8", "replace")[-200:] if last.status != "output" else ""
    line = (said.strip() or last.error.strip()).replace("\n", " ")[-160:]
    return f"{last.status}: {line}" if line else last.status, last.status


def _left_behind(marker: str) -> str:
    """Return a line about a file in the host's /tmp, or a process of the host, with the marker; "" without one."""
    if os.path.exists(f"/tmp/{marker}"):
        os.unlink(f"/tmp/{marker}")
        return f"/tmp/{marker} exists on the host"
    for entry in os.listdir("/proc"):
        try:
            command = Path(f"/proc/{entry}/cmdline").read_bytes() if entry.isdigit() else b""
        except OSError:
            continue
        if command.endswith(marker.encode() + b"\0"):
            return f"process {entry} still runs on the host"
    return ""
