"""A remote sandbox service with the protocol of SandboxFusion's /run_code, which verl uses too.

One request per program: the supervisor is sent as the service's program, and the job as its standard input.
"""

import base64
import binascii
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from egpo.rewards.sandbox.jobs import Limits, Place, Report, SandboxJob, framed, frames, read_outcomes
from egpo.rewards.sandbox.payload import as_text
from egpo.waits import waiting

_ATTEMPTS = 3
_SPARE_S, _REPLY_S = 5.0, 30.0
"""Seconds beyond the program's limit: for the service to start it, and for the service to answer."""
_WORTH_ANOTHER_TRY = (429, 502, 503, 504)
_LARGEST_ANSWER = 1 << 28


@dataclass(frozen=True)
class HttpSandbox:
    """A sandbox service at `url`, which is responsible for the containment of programs."""

    url: str
    limits: Limits = field(default_factory=Limits)
    tier = "http"

    def run(self, job: SandboxJob) -> Report:
        seconds = min(job.limits.total_s, job.limits.wall_s * job.work.size) + _SPARE_S
        try:
            with waiting("sandbox service", f"the sandbox service at {self.url}", limit_s=seconds + _REPLY_S):
                answer = _post(self.url, _request(job, seconds), seconds + _REPLY_S)
            return _report(answer)
        except (OSError, ValueError) as error:
            return Report((), failure=f"{self.url}: {error}")


def _request(job: SandboxJob, seconds: float) -> dict[str, object]:
    contents = [base64.b64encode(content) for content in frames(job, Place(".", ".egpo-stdin"))]
    return {
        "code": as_text(job.work.kind),
        "language": "python",
        "stdin": framed(contents).decode("ascii"),
        "compile_timeout": seconds,
        "run_timeout": seconds,
        "memory_limit_MB": job.limits.memory_mb * 2,
        "files": {},
        "fetch_files": [],
    }


def _post(url: str, content: dict[str, object], timeout_s: float) -> Any:
    """Return the service's answer. A request to a busy service is retried; any other refusal is final."""
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    request = urllib.request.Request(url, json.dumps(content).encode(), headers)
    for attempt in range(_ATTEMPTS):
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                return json.loads(response.read(_LARGEST_ANSWER))
        except urllib.error.HTTPError as error:
            if error.code not in _WORTH_ANOTHER_TRY or attempt + 1 == _ATTEMPTS:
                raise
            time.sleep(2.0**attempt / 2)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _report(answer: Any) -> Report:
    """Return the report for the service's answer, a dict with `status`, `message`, and `run_result` (`status`,
    `return_code`, `stdout`, `stderr`)."""
    run = answer.get("run_result") if isinstance(answer, dict) else None
    if not isinstance(run, dict) or answer.get("status") == "SandboxError":
        said = answer.get("message") if isinstance(answer, dict) else None
        return Report((), failure=f"the service failed: {said or 'no run_result in its answer'}")
    outcomes = read_outcomes(_unarmoured(str(run.get("stdout") or "")))
    if run.get("status") == "TimeLimitExceeded":
        return Report(outcomes, stopped="timeout")
    if run.get("return_code") != 0:
        return Report(outcomes, failure=f"the service ended the run: {str(run.get('stderr') or '')[-300:]}")
    return Report(outcomes)


def _unarmoured(text: str) -> bytes:
    try:
        return b"".join(base64.b64decode(line, validate=True) for line in text.split())
    except binascii.Error:
        return b""
