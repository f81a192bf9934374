"""A short selection of `python -m tests.faults.rewards`: transformed answers with known verdicts, and attacks.

Everything is in the tables of `transformations` and `attacks`; docs/reliability.md has the numbers of the long run.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pytest

from egpo.rewards.math import MathPool, use_pool
from egpo.rewards.sandbox import sandbox_status
from egpo.rewards.verdict import Verdict
from tests.faults import attacks, hostile_programs, rewards
from tests.faults.transformations import Tally, Transformation, calls, equations, formulas, judge_all, numbers, programs

FEW = {"math": 2, "hybrid": 0} | dict.fromkeys(
    ("gsm8k", "countdown", "tool calls", "BFCL's answers", "no call expected", "toolbox"), 4
)


@pytest.fixture(scope="module")
def pool() -> Iterator[MathPool]:
    with MathPool(size=1) as pool:
        use_pool(pool)
        yield pool
    use_pool(None)


@pytest.fixture(scope="module")
def sandbox() -> None:
    status = sandbox_status("bubblewrap")
    if not status.ok:
        pytest.skip(f"{status.detail}; {status.fix}")


def assert_sound(tally: Tally, false_negatives: Sequence[str] = ()) -> None:
    """No wrong answer is right, no verdict is failed, and a right answer is refused only for these kinds of forms."""
    assert tally.false_positives == []
    assert tally.failed == []
    assert set(tally.false_negatives) <= set(false_negatives)
    assert tally.judgements > 0


def test_gsm8k() -> None:
    folder = rewards.GSM8K if rewards.GSM8K.is_dir() else None
    assert_sound(judge_all("GSM8K", numbers.truths(folder, 60), lambda _: numbers.TRANSFORMATIONS, numbers.judge))


def test_gsm8k_negative_and_large_numbers() -> None:
    # The generated problems have neither.
    large = ["-3", "0", "1", "-1080", "1000000", "98765432109876543210"]
    assert_sound(judge_all("GSM8K", large, lambda _: numbers.TRANSFORMATIONS, numbers.judge))


def test_countdown() -> None:
    assert_sound(judge_all("Countdown", equations.truths(60), lambda _: equations.TRANSFORMATIONS, equations.judge))


@pytest.mark.parametrize("rule", [calls.EXACT, calls.BFCL])
def test_tool_calls(rule: str) -> None:
    truths = [truth for truth in calls.truths(25) if truth.answers or rule == calls.EXACT]
    if not truths:
        pytest.skip("BFCL's environment is not built (make test builds it)")
    judge = calls.judge_exact if rule == calls.EXACT else calls.judge_by_answers
    assert_sound(judge_all(rule, truths, lambda _: calls.BY_RULE[rule], judge))


def test_math(pool: MathPool) -> None:
    """The forms of an answer of each kind; the ways to place an answer for every tenth kind."""
    answers = formulas.truths(len(formulas.KINDS), seed=1)

    def chosen(answer: formulas.Answer) -> Iterator[Transformation]:
        return (
            how for how in formulas.transformations(answer) if how not in formulas.AROUND or answer in answers[::10]
        )

    tally = judge_all("math", answers, chosen, formulas.judge_with(pool))
    assert_sound(tally, ["set", "number in a base", "several solutions", "plus or minus", "place of the answer"])


def test_code(sandbox: None) -> None:
    """A quarter of the transformations for a function, and another for a script."""
    function, script = programs.truths(2)
    of_function = [how for how in programs.TRANSFORMATIONS if how.write(function) is not None][::4]
    of_script = [how for how in programs.TRANSFORMATIONS if how.write(script) is not None][1::4]
    for problem, chosen in ((function, of_function), (script, of_script)):
        assert_sound(judge_all("code", [problem], lambda _, chosen=chosen: chosen, programs.judge))  # type: ignore[misc]


def test_there_are_hundreds_of_transformations_and_no_name_stands_for_two() -> None:
    tables = [numbers.TRANSFORMATIONS, equations.TRANSFORMATIONS, programs.TRANSFORMATIONS, formulas.AROUND]
    tables += calls.BY_RULE.values()
    for table in tables:
        names = [how.name for how in table]
        assert len(names) == len(set(names))
    assert sum(map(len, tables)) > 600
    assert all(how.why for table in tables for how in table if how.verdict == "undefined")


@pytest.mark.parametrize("strategy", attacks.STRATEGIES)
def test_no_response_makes_its_own_verdict_failed(strategy: str, pool: MathPool) -> None:
    found = rewards.attack(strategy, FEW)
    assert found.failed == []
    assert found.attempts.total() == sum(FEW.values())


@pytest.mark.parametrize("strategy", hostile_programs.STRATEGIES)
def test_no_program_makes_its_own_verdict_failed(strategy: str, sandbox: None) -> None:
    for program, tests in islice(hostile_programs.attempts(strategy), 1, None, 16):
        verdict = hostile_programs.judge(program, tests)
        assert (verdict.failed, verdict.correct) == (False, False), program


@pytest.mark.parametrize(
    ("verdict", "found"),
    [
        (Verdict(1.0, True, "correct"), "false_positives"),
        (Verdict(0.0, False, "wrong_number"), "false_negatives"),
        (Verdict(0.0, False, "checker_died", failed=True), "failed"),
    ],
)
def test_a_reward_that_always_says_the_same_is_seen(verdict: Verdict, found: str) -> None:
    def judge(truth: Any, text: str) -> Verdict:
        return verdict

    tally = judge_all("GSM8K", ["18"], lambda _: numbers.TRANSFORMATIONS, judge)
    assert getattr(tally, found)
