"""What a task from outside may return from `judge`, and what becomes of it."""

import signal
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

from egpo import errors
from egpo.errors import EgpoError, EgpoWarning
from egpo.rewards.verdict import Verdict
from egpo.tasks import Problem, protocol
from egpo.tasks.protocol import JUDGE_RAISED, JUDGE_TIMED_OUT, judge_texts

PROBLEM = Problem("p", ({"role": "user", "content": "?"},), "1")
SOUND = Verdict(0.5, False, "half")


class Judging:
    """Of the text `odd` it says what it is told to, of any other something sound."""

    def __init__(self, said):
        self.said = said

    def judge(self, problem, text):
        return self.said if text == "odd" else SOUND


@pytest.mark.parametrize(
    "said",
    [None, 1.0, (1.0, True)]
    + [Verdict(reward, True, "r") for reward in (float("nan"), float("inf"), -float("inf"), 1e300, "good", None)],
)
def test_what_is_no_verdict_fails_its_row_alone(said):
    odd, even = judge_texts(Judging(said), [PROBLEM] * 2, ["odd", "even"])
    assert odd == Verdict(0.0, False, JUDGE_RAISED, failed=True)
    assert even == SOUND


def test_a_judge_that_never_gives_a_verdict_is_named_with_what_it_gave():
    with pytest.raises(EgpoError, match="returned float, not a Verdict"):
        judge_texts(Judging(1.0), [PROBLEM], ["odd"])


def test_numbers_of_numpy_become_plain_ones():
    (verdict,) = judge_texts(Judging(Verdict(np.float32(0.5), np.bool_(True), "r")), [PROBLEM], ["odd"])
    assert (type(verdict.reward), type(verdict.correct)) == (float, bool)


class Hanging:
    """Its judge waits until it is told to go on. The first text interrupts whoever waits for it, as Ctrl-C would."""

    def __init__(self):
        self.go_on = threading.Event()

    def judge(self, problem, text):
        if text == "interrupt":
            signal.raise_signal(signal.SIGINT)
        self.go_on.wait()
        return SOUND


def test_an_interrupt_does_not_wait_for_a_judge_that_hangs():
    task = Hanging()
    rescue = threading.Timer(20, task.go_on.set)
    rescue.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            judge_texts(task, [PROBLEM] * 3, ["interrupt", "hang", "hang"])
        assert not task.go_on.is_set()
    finally:
        task.go_on.set()
        rescue.cancel()


class Exiting:
    """Its judge leaves the interpreter, or pretends that somebody pressed Ctrl-C."""

    def judge(self, problem, text):
        raise {"exit": SystemExit(0), "interrupt": KeyboardInterrupt(), "fine": ValueError()}[text]


@pytest.mark.parametrize("text", ["exit", "interrupt"])
def test_a_judge_that_leaves_the_interpreter_fails_its_row_alone(text):
    """SystemExit(0) of a judge ended a run with exit code 0."""
    with pytest.raises(EgpoError, match=r"Exiting: the judge failed on all 2 responses: judge_raised \((System|Key)"):
        judge_texts(Exiting(), [PROBLEM] * 2, [text] * 2)


@pytest.fixture
def hanging():
    task = Hanging()
    yield task
    task.go_on.set()
    for thread in protocol._hanging:
        thread.join()
    protocol._hanging.clear()


class Sometimes(Hanging):
    def judge(self, problem, text):
        return super().judge(problem, text) if text == "hang" else SOUND


def test_a_judgement_that_hangs_is_left_out_and_named(monkeypatch):
    errors.forget_warnings()
    task = Sometimes()
    problems = [PROBLEM, replace(PROBLEM, key="the slow one"), *[PROBLEM] * 8]
    with pytest.warns(EgpoWarning, match=r"Sometimes: no verdict on a response to problem 'the slow one' within 0.2 s"):
        verdicts = judge_texts(task, problems, ["fine", "hang", *["fine"] * 8], timeout_s=0.2)
    task.go_on.set()
    assert [verdict.reason for verdict in verdicts] == ["half", JUDGE_TIMED_OUT, *["half"] * 8]
    assert [verdict.failed for verdict in verdicts] == [False, True, *[False] * 8]


def test_a_judgement_that_takes_long_is_named_before_its_limit(monkeypatch, hanging):
    errors.forget_warnings()
    monkeypatch.setattr(protocol, "_NOTICE_S", 0.1)
    threading.Timer(2, hanging.go_on.set).start()
    with pytest.warns(EgpoWarning, match=r"Hanging has taken \d+ s for a response to problem 'p'"):
        assert judge_texts(hanging, [PROBLEM], ["slow"], timeout_s=600)[0] == SOUND


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
def test_a_judge_that_hangs_again_and_again_is_an_error(hanging):
    """Its threads cannot be ended. All of a batch at once, or one of each."""
    texts = ["hang"] * 30
    with pytest.raises(EgpoError, match=r"Hanging: the judge hangs in \d+ threads; the last: no verdict"):
        judge_texts(hanging, [PROBLEM] * 30, texts, timeout_s=0.1)


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
def test_a_task_may_set_its_own_limit(hanging):
    hanging.judge_timeout_s = 0.1
    with pytest.raises(EgpoError, match=r"within 0.1 s \(task.judge_timeout_s\)"):
        judge_texts(hanging, [PROBLEM], ["hang"])


def test_a_machine_without_a_thread_to_give_judges_without_one(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert judge_texts(Judging(None), [PROBLEM] * 2, ["even"] * 2) == (SOUND, SOUND)


def test_a_process_ends_although_a_judge_hangs(tmp_path):
    """The threads of a pool are waited for at the end of the interpreter, for ever."""
    code = (
        "import threading, sys\nfrom egpo.tasks import Problem\nfrom egpo.tasks.protocol import judge_texts\n"
        "class Hangs:\n    def judge(self, problem, text):\n        threading.Event().wait()\n"
        "judge_texts(Hangs(), [Problem('p', (), '')], ['x'], timeout_s=0.2)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "within 0.2 s" in done.stderr
    assert done.returncode == 1


def test_a_judge_that_holds_the_interpreters_lock_is_shown():
    """A regular expression that backtracks lets no other thread run, so no time limit of Python's is looked at."""
    code = (
        "import re, sys\nfrom egpo.tasks import Problem\nfrom egpo.tasks import protocol\n"
        "protocol._NOTICE_S = 0.5\n"
        "class Backtracks:\n    def judge(self, problem, text):\n        return re.match(r'(a+)+$', 'a' * 200 + 'b')\n"
        "protocol.judge_texts(Backtracks(), [Problem('p', (), '')], ['x'], timeout_s=0.5)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    try:
        lines = iter(process.stderr.readline, "")
        assert next(line for line in lines if "in judge" in line)
    finally:
        process.kill()
        process.communicate()
