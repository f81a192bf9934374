"""The HTTP tier, against a service that runs programs as SandboxFusion does: code in a file, text in and out."""

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from egpo.rewards.code import judge_code
from egpo.rewards.sandbox import choose_sandbox, sandbox_status
from egpo.rewards.sandbox.http import HttpSandbox
from egpo.rewards.sandbox.jobs import SandboxJob, Scripts


class Service(BaseHTTPRequestHandler):
    answers: ClassVar[list[tuple[int, object]]] = []
    requests: ClassVar[list[dict]] = []

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append(request)
        status, answer = self.answers.pop(0) if self.answers else (200, run(request))
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


def run(request: dict) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", request["code"]]
        done = subprocess.run(command, input=request["stdin"], capture_output=True, text=True, timeout=60, cwd=folder)
    result = {"status": "Finished", "execution_time": 0.1, "return_code": done.returncode}
    result |= {"stdout": done.stdout, "stderr": done.stderr}
    status = "Success" if done.returncode == 0 else "Failed"
    return {"status": status, "message": "", "compile_result": None, "run_result": result, "files": {}}


@pytest.fixture
def url() -> Iterator[str]:
    Service.answers, Service.requests = [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/run_code"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("program", "tests", "reason"),
    [
        ("print(int(input()) * 2)", {"inputs": ["1", "4"], "outputs": ["2", "8"]}, "correct"),
        ("print(2)", {"inputs": ["1", "4"], "outputs": ["2", "8"]}, "wrong_answer"),
        ("print('é' + input())", {"inputs": ["ü\n"], "outputs": ["éü"]}, "correct"),
        ("def f(x): return x + 1", {"assert": ["assert f(1) == 2", "assert f([]) == 3"]}, "runtime_error"),
        ("def f(x): return x + 1", {"assert": ["assert f(1) == 2"]}, "correct"),
        ("import os\ndef f(x): os._exit(0)", {"assert": ["assert f(1) == 2"]}, "crashed"),
        ("def f(:", {"assert": ["assert f(1) == 2"]}, "syntax_error"),
    ],
)
def test_same_verdicts_through_a_service(url: str, program: str, tests: dict, reason: str) -> None:
    verdict = judge_code(f"```python\n{program}\n```", tests, sandbox=choose_sandbox(url))
    assert (verdict.reason, verdict.failed) == (reason, False)
    assert len(Service.requests) == 1, "one request for all tests of a program"


def test_the_request_is_sandbox_fusions(url: str) -> None:
    HttpSandbox(url).run(SandboxJob("print(1)", Scripts((b"",))))
    (request,) = Service.requests
    assert request["language"] == "python"
    assert {"code", "stdin", "compile_timeout", "run_timeout", "memory_limit_MB", "files", "fetch_files"} <= set(
        request
    )


def test_a_busy_service_is_asked_again(url: str) -> None:
    Service.answers = [(503, {})]
    assert HttpSandbox(url).run(SandboxJob("print(1)", Scripts((b"",)))).outcomes[0].output == b"1\n"


def finished(**result: object) -> dict:
    return {"status": "Success", "run_result": {"status": "Finished", "return_code": 0, "stdout": "", **result}}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((200, {"status": "SandboxError", "message": "no pod"}), "sandbox_died"),
        ((200, []), "sandbox_died"),
        ((200, "x"), "sandbox_died"),
        ((404, {}), "sandbox_died"),
        ((200, finished(return_code=1, stderr="killed")), "sandbox_died"),
    ],
)
def test_a_failing_service_is_a_checker_failure(url: str, answer: tuple[int, object], reason: str) -> None:
    Service.answers = [answer]
    tests = {"inputs": [""], "outputs": ["1"]}
    verdict = judge_code("```python\nprint(1)\n```", tests, sandbox=HttpSandbox(url))
    assert (verdict.reason, verdict.failed, verdict.reward) == (reason, True, 0.0)


def test_a_services_time_limit_is_the_programs(url: str) -> None:
    Service.answers = [(200, finished(status="TimeLimitExceeded", return_code=None))]
    verdict = judge_code("```python\nprint(1)\n```", {"inputs": [""], "outputs": ["1"]}, sandbox=HttpSandbox(url))
    assert (verdict.reason, verdict.failed) == ("timeout", False)


def test_status_of_a_service(url: str) -> None:
    status = sandbox_status(url)
    assert status.ok
    assert url in status.detail
