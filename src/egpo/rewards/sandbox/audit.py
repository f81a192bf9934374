"""Tries to escape from a sandbox, and tells what happened."""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from egpo.rewards.sandbox.choose import Sandbox
from egpo.rewards.sandbox.escapes import ESCAPES, GOT_THROUGH, Attempt
from egpo.rewards.sandbox.job import Checks, Job, Report, Scripts
from egpo.rewards.sandbox.limits import Limits
from egpo.rewards.sandbox.memory_attempts import HOLDS_MEMORY
from egpo.rewards.sandbox.root import interpreter

ATTEMPTS = (*ESCAPES, *HOLDS_MEMORY)
AUDIT_LIMITS = Limits(cpu_s=1, total_s=20.0, memory_mb=256, processes=8, tmp_mb=32, file_mb=16, files=1000)


@dataclass(frozen=True)
class Finding:
    """One attempt: what the program or the sandbox said, and whether it was contained."""

    attempt: str
    happened: str
    contained: bool


@contextmanager
def laid_out_bait() -> Iterator[dict[str, object]]:
    """On the host: a file, a process, a listening port, a Unix socket and a variable for the programs to reach."""
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
        # The way down to the interpreter shows, where it lives in somebody's home.
        allowed = [Path(interpreter()).relative_to(home).parts[0]] if interpreter().startswith(home + "/") else []
        yield {
            "file": str(file), "folder": folder, "home": home, "allowed": allowed, "marker": marker,
            "memory_mb": AUDIT_LIMITS.memory_mb, "pid": sleeper.pid, "port": port.getsockname()[1], "socket": f"{folder}/socket", "variable": "EGPO_BAIT",
        }  # fmt: skip


def audit(sandbox: Sandbox) -> Iterator[Finding]:
    """Every attempt, one program each."""
    with laid_out_bait() as bait:
        for attempt in ATTEMPTS:
            yield try_to_escape(sandbox, attempt, bait)


def try_to_escape(sandbox: Sandbox, attempt: Attempt, bait: dict[str, object]) -> Finding:
    if attempt.forges:
        return _forged(sandbox, attempt)
    report = sandbox.run(Job(f"BAIT = {bait!r}\n{attempt.program}", Scripts((b"",)), _limits(attempt)))
    happened, end = _told(report)
    boasted = any(GOT_THROUGH.encode() in outcome.output for outcome in report.outcomes)
    unlimited = bool(attempt.ends) and end not in attempt.ends
    left_behind = _left_behind(str(bait["marker"]))
    contained = not (boasted or unlimited or left_behind or _broken(report))
    return Finding(attempt.name, left_behind or happened, contained)


def _limits(attempt: Attempt) -> Limits:
    return replace(AUDIT_LIMITS, wall_s=attempt.wall_s)


def _forged(sandbox: Sandbox, attempt: Attempt) -> Finding:
    """Against tests whose expected value is random, and which are written in each of the ways to write one."""
    right = (secrets.randbelow(10**6) + 10**6) * 1000003 + 17
    call = {"fn_name": "f", "args": [1], "kwargs": {}, "expected": [right]}
    snippets = (
        f"assert f(1) == {right}",
        f"assert abs(f(1) - {right}) < 1e-6",
        f"assert all(a == b for a, b in zip(map(f, [1, 2]), [{right}, {right}], strict=True))",
        f"def check(g):\n    assert g(1) == {right} and isinstance(g(1), int)\ncheck(f)",
    )
    report = sandbox.run(Job(attempt.program, Checks((call, *snippets), ("f",)), _limits(attempt)))
    passed = [index for index, outcome in enumerate(report.outcomes) if outcome.status == "ok"]
    happened = f"tests passed: {passed}" if passed else _told(report)[0]
    return Finding(attempt.name, happened, not passed and not _broken(report))


def _broken(report: Report) -> bool:
    """The sandbox itself gave way, or has nothing to say: no proof that it held."""
    return bool(report.failure) or not (report.outcomes or report.stopped)


def _told(report: Report) -> tuple[str, str]:
    """What happened in a line, and how the program ended."""
    if report.stopped or _broken(report):
        return report.failure or f"stopped: {report.stopped or 'no report'}", report.stopped
    last = report.outcomes[-1]
    said = last.output.decode("utf-8", "replace")[-200:] if last.status != "output" else ""
    line = (said.strip() or last.error.strip()).replace("\n", " ")[-160:]
    return f"{last.status}: {line}" if line else last.status, last.status


def _left_behind(marker: str) -> str:
    """A file in the host's /tmp, or a process of the host, that carries the marker."""
    if os.path.exists(f"/tmp/{marker}"):
        os.unlink(f"/tmp/{marker}")
        return f"/tmp/{marker} exists on the host"
    for entry in os.listdir("/proc"):
        try:
            command = Path(f"/proc/{entry}/cmdline").read_bytes() if entry.isdigit() else b""
        except OSError:
            continue
        if command.endswith(marker.encode() + b"\0"):
            return f"process {entry} lives on"
    return ""
