"""The workers of the math reward: late ones are killed, dead ones replaced, and none outlives its parent."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from egpo.errors import EgpoError, InputError
from egpo.rewards.math import MathPool, judge_math, shared_pool, use_pool
from egpo.rewards.math.pool import EXHAUSTED, ask, start_worker
from tests.waiting import becomes_true, is_running

NEEDS_A_WORKER = r"\boxed{\sqrt{49}}"
ENDLESS = r"\boxed{9^{9^{9^{9}}}}"
PARENT_SCRIPT = """
import os, signal, sys, threading, time
from egpo.rewards.math import MathPool, judge, judge_math
judge.is_explosive = lambda *_: False
signal.signal(signal.SIGALRM, signal.SIG_IGN)  # handed down to the worker, which must not mind
pool = MathPool(size=1)
pool.start()
print(pool._workers.idle[0].pid, flush=True)
if sys.argv[1] == "busy":
    threading.Thread(target=judge_math, args=(sys.argv[2], "7"), kwargs=dict(timeout_s=1.0, pool=pool)).start()
    while pool._workers.idle: time.sleep(0.01)
    time.sleep(0.2)  # from taken to asked
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def pool() -> Iterator[MathPool]:
    with MathPool(size=1) as pool:
        yield pool


@pytest.fixture(scope="module")
def lasting_pool() -> Iterator[MathPool]:
    with MathPool(size=1) as pool:
        yield pool


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge that does not see what is endless: whatever slips past its rules must cost a worker and no more."""
    monkeypatch.setattr("egpo.rewards.math.judge.is_explosive", lambda *_: False)


def pid_of_idle_worker(pool: MathPool) -> int:
    return pool._workers.idle[0].pid


@pytest.mark.usefixtures("blind")
def test_an_endless_comparison_is_a_wrong_answer_and_the_pool_goes_on(pool: MathPool) -> None:
    pool.start()
    pid = pid_of_idle_worker(pool)
    verdict = judge_math(ENDLESS, "7", timeout_s=0.3, pool=pool)
    assert (verdict.reward, verdict.failed, verdict.reason) == (0.0, False, "exhausts_checker")
    assert not is_running(pid)
    assert judge_math(NEEDS_A_WORKER, "7", pool=pool).correct


@pytest.mark.usefixtures("blind")
def test_a_ground_truth_that_exhausts_the_checker_itself_is_a_failure_and_no_verdict(pool: MathPool) -> None:
    verdict = judge_math(NEEDS_A_WORKER, ENDLESS, timeout_s=0.3, pool=pool)
    assert (verdict.reward, verdict.failed) == (0.0, True)
    assert verdict.reason in EXHAUSTED


UNION = r"\cup".join(f"({2 * k},{2 * k + 1})" for k in range(80))
HOSTILE = {
    "union of 80 intervals": UNION,
    "nested functions": r"\sin(" * 12 + "x" + ")" * 12,
    "determinant": r"\det\begin{pmatrix}"
    + r"\\".join("&".join(f"{'abcdefgh'[i * j % 8]}{i}" for j in range(7)) for i in range(7))
    + r"\end{pmatrix}",
    "exponentials of exponentials": "e^{e^{e^{e^{e}}}}",
    "a power of nine that no memory holds": "9^{9^{9^{9}}}",
    "a chain of equations": "=".join(["2+3"] * 150),
    "digits": r"\frac{" + "9" * 450 + "}{" + "7" * 450 + "}x",
    "a root of a product of two large primes": rf"\sqrt{{{(10**60 + 7) * (10**61 + 33)}}}",
}


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE)
def test_a_wrong_answer_cannot_leave_its_group(answer: str, lasting_pool: MathPool) -> None:
    """Each of these, or a longer one of its kind, was `failed`, and was left out of the mean of its group."""
    verdict = judge_math(rf"\boxed{{{answer}}}", "5000", timeout_s=0.3, pool=lasting_pool)
    assert (verdict.reward, verdict.correct, verdict.failed) == (0.0, False, False), verdict
    assert judge_math(NEEDS_A_WORKER, "7", pool=lasting_pool).correct
    assert len(lasting_pool._workers.idle) == 1


class ScriptedPool:
    """Replies in turn, and the answers that were compared."""

    def __init__(self, *replies: str) -> None:
        self.replies, self.asked = list(replies), []

    def compare(self, gold: str, answer: str, timeout_s: float) -> str:
        self.asked.append(answer)
        return self.replies.pop(0)


@pytest.mark.parametrize(
    ("replies", "reason", "failed"),
    [
        (["same"], "correct", False),
        (["different"], "wrong_answer", False),
        *(([bad, "same"], "correct", False) for bad in EXHAUSTED),
        *(([bad, "different"], "wrong_answer", False) for bad in EXHAUSTED),
        *(([bad, bad, "same", "different"], "exhausts_checker", False) for bad in EXHAUSTED),
        (["checker_timeout", "checker_memory", "same", "different"], "exhausts_checker", False),
        # the ground truth exhausts the checker as well, in comparison with itself or with another answer
        *(([bad, bad, bad], bad, True) for bad in EXHAUSTED),
        *(([bad, bad, "same", bad], bad, True) for bad in EXHAUSTED),
        # what the answer cannot bring about
        *(([bad], bad, True) for bad in ("checker_died", "checker_stalled", "checker_unavailable")),
        *((["checker_timeout", bad], bad, True) for bad in ("checker_died", "checker_stalled", "checker_unavailable")),
        *(
            (["checker_timeout", "checker_timeout", bad], "checker_timeout", True)
            for bad in ("checker_died", "checker_stalled", "checker_unavailable")
        ),
    ],
)
def test_only_an_answer_that_exhausts_the_checker_twice_where_the_gold_does_not_is_wrong(
    replies: list[str], reason: str, failed: bool
) -> None:
    pool = ScriptedPool(*replies)
    verdict = judge_math(NEEDS_A_WORKER, "7", pool=pool)
    assert (verdict.reason, verdict.failed) == (reason, failed)
    assert pool.replies == []
    assert pool.asked[: len(replies)] == [r"\sqrt{49}", r"\sqrt{49}", "7", "1"][: len(replies)]


@pytest.mark.usefixtures("blind")
def test_a_worker_that_does_not_get_to_run_is_a_failure_of_the_checker(
    pool: MathPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("egpo.rewards.math.pool.WALL_FACTOR", 1.0)
    pool.start()
    os.kill(pid_of_idle_worker(pool), signal.SIGSTOP)
    verdict = judge_math(NEEDS_A_WORKER, "7", timeout_s=0.3, pool=pool)
    assert (verdict.reward, verdict.failed, verdict.reason) == (0.0, True, "checker_stalled")
    assert judge_math(NEEDS_A_WORKER, "7", pool=pool).correct


def test_a_worker_that_died_idle_is_replaced(pool: MathPool) -> None:
    pool.start()
    pid = pid_of_idle_worker(pool)
    os.kill(pid, signal.SIGKILL)
    assert becomes_true(lambda: not is_running(pid))
    assert judge_math(NEEDS_A_WORKER, "7", pool=pool).correct


@pytest.mark.usefixtures("blind")
def test_a_worker_that_dies_busy_is_a_failure_of_the_checker(pool: MathPool) -> None:
    pool.start()
    pid = pid_of_idle_worker(pool)

    def kill_when_busy() -> None:
        becomes_true(lambda: not pool._workers.idle)
        time.sleep(0.2)  # from taken to asked
        os.kill(pid, signal.SIGKILL)

    threading.Thread(target=kill_when_busy).start()
    verdict = judge_math(ENDLESS, "7", timeout_s=60.0, pool=pool)
    assert (verdict.reward, verdict.failed, verdict.reason) == (0.0, True, "checker_died")
    assert judge_math(NEEDS_A_WORKER, "7", pool=pool).correct


def test_threads_share_a_pool_and_each_gets_its_own_answer() -> None:
    with MathPool(size=2) as pool, ThreadPoolExecutor(6) as threads:
        answers = [f"\\boxed{{0.5 \\cdot {n}}}" for n in range(1, 60)]
        verdicts = list(threads.map(lambda text: judge_math(text, "7", pool=pool), answers))
    assert [n for n, verdict in enumerate(verdicts, start=1) if verdict.correct] == [14]
    assert {verdict.reason for verdict in verdicts} == {"correct", "wrong_answer"}


def test_an_event_loop_hands_it_to_threads(pool: MathPool) -> None:
    async def ask() -> list[bool]:
        calls = [asyncio.to_thread(judge_math, f"\\boxed{{\\sqrt{{{n * n}}}}}", "6", pool=pool) for n in range(1, 9)]
        return [verdict.correct for verdict in await asyncio.gather(*calls)]

    assert asyncio.run(ask()) == [n == 6 for n in range(1, 9)]


def test_a_worker_outlives_the_thread_that_started_it(pool: MathPool) -> None:
    thread = threading.Thread(target=judge_math, args=(NEEDS_A_WORKER, "7"), kwargs={"pool": pool})
    thread.start()
    thread.join()
    pid = pid_of_idle_worker(pool)
    assert judge_math(NEEDS_A_WORKER, "7", pool=pool).correct
    assert pid_of_idle_worker(pool) == pid


def test_a_fork_starts_workers_of_its_own(pool: MathPool) -> None:
    pool.start()
    parents = pid_of_idle_worker(pool)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            correct = judge_math(NEEDS_A_WORKER, "7", pool=pool).correct
            code = 0 if correct and pid_of_idle_worker(pool) != parents else 1
            pool.close()
        finally:
            # Whatever happens: a second copy of pytest must not go on from here.
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert judge_math(NEEDS_A_WORKER, "7", pool=pool).correct
    assert pid_of_idle_worker(pool) == parents


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_workers_die_with_a_parent_that_was_killed(state: str) -> None:
    command = [sys.executable, "-c", PARENT_SCRIPT, state, ENDLESS]
    parent = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert parent.returncode == -signal.SIGKILL
    assert becomes_true(lambda: not is_running(int(parent.stdout)))


def test_a_large_parent_does_not_count_against_its_workers() -> None:
    # Linux carries the peak of ru_maxrss over an exec.
    script = "ballast = bytearray(400 << 20)\nfrom egpo.rewards.math import judge_math\n"
    script += r"print(judge_math(r'\boxed{\sqrt{2}}', '7').reason)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "wrong_answer", done.stderr


def test_a_no_from_a_worker_short_of_memory_is_a_failure_and_a_yes_is_not() -> None:
    worker = start_worker(memory_mb=128)  # a quarter of it is less than math-verify itself takes
    try:
        limits = Path(f"/proc/{worker.pid}/limits").read_text()
        assert str(128 << 20) in next(line for line in limits.splitlines() if "address space" in line)
        assert ask(worker, "7", "1/2", timeout_s=30.0) == "checker_memory"
        assert ask(worker, "7", "14/2", timeout_s=30.0) == "same_and_spent"
    finally:
        worker.kill()


def test_a_worker_that_cannot_start_is_reported_before_the_run_and_counted_during_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError('broken\\ninstallation')")
    monkeypatch.syspath_prepend(tmp_path)
    with MathPool() as pool:
        with pytest.raises(EgpoError, match=r"broken.*installation"):
            pool.start()
        verdict = judge_math(NEEDS_A_WORKER, "7", pool=pool)
        assert (verdict.reward, verdict.failed, verdict.reason) == (0.0, True, "checker_unavailable")


def test_a_worker_short_of_memory_is_not_used_again(pool: MathPool) -> None:
    pool.memory_mb = 128
    assert pool.compare("7", "14/2", timeout_s=30.0) == "same"
    assert pool.compare("7", "1/2", timeout_s=30.0) == "checker_memory"
    assert pool._workers.idle == []


def test_closing_ends_the_workers_and_a_closed_pool_says_so(pool: MathPool) -> None:
    pool.start()
    pid = pid_of_idle_worker(pool)
    pool.close()
    assert not is_running(pid)
    with pytest.raises(EgpoError, match="closed"):
        pool.compare("1", "2", 1.0)
    with pytest.raises(EgpoError, match="closed"):
        pool.start()


def test_the_shared_pool_can_be_replaced() -> None:
    replacement = MathPool(size=3)
    use_pool(replacement)
    assert shared_pool() is replacement
    use_pool(None)
    with pytest.raises(EgpoError, match="closed"):
        replacement.start()
    assert shared_pool() is not replacement


@pytest.mark.parametrize("settings", [{"size": 0}, {"memory_mb": 1}])
def test_a_pool_that_cannot_work_is_refused(settings: dict[str, int]) -> None:
    with pytest.raises(InputError, match="MathPool"):
        MathPool(**settings)
