"""What a task from outside may return from `judge`, and what becomes of it."""

import signal
import threading

import numpy as np
import pytest

from egpo.errors import EgpoError
from egpo.rewards.verdict import Verdict
from egpo.tasks import Problem
from egpo.tasks.judging import JUDGE_RAISED, judge_texts

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
