"""A verdict on every response, from the task's own judge."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from egpo.errors import EgpoError
from egpo.rewards.verdict import Verdict
from egpo.tasks.protocol import Problem, Task

JUDGE_RAISED = "judge_raised"
"""The reason of a verdict that a task's judge did not give: it raised, or returned something else."""

_LARGEST = 3e38


def judge_texts(task: Task, problems: Sequence[Problem], texts: Sequence[str]) -> tuple[Verdict, ...]:
    """On each text, as an answer to the problem at its place. Judges that wait (for a sandbox, for a worker) wait side
    by side.

    A judge that raises, or returns what is no verdict or no finite reward, fails that text; one that fails every text
    is an error.
    """
    first_error: list[Exception] = []

    def verdict(problem: Problem, text: str) -> Verdict:
        try:
            return _checked(task.judge(problem, text))
        except EgpoError:
            raise
        except Exception as error:  # the boundary: a task from outside may raise anything
            first_error.append(error)
            return Verdict(0.0, False, JUDGE_RAISED, failed=True)

    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        verdicts = tuple(pool.map(verdict, problems, texts))
    finally:
        # An interrupt does not wait for a judge that hangs: what the run has done can then be saved.
        pool.shutdown(wait=False, cancel_futures=True)
    _require_some(verdicts, first_error)
    return verdicts


def _checked(verdict: Any) -> Verdict:
    """In Python's own types: the numbers of numpy and torch are no JSON. Beyond float32 a reward is infinite."""
    if not isinstance(verdict, Verdict):
        raise TypeError(f"`judge` returned {type(verdict).__name__}, not a Verdict")
    reward = float(verdict.reward)
    if not abs(reward) <= _LARGEST:
        raise ValueError(f"`judge` returned a reward of {reward}")
    return replace(verdict, reward=reward, correct=bool(verdict.correct), failed=bool(verdict.failed))


def _require_some(verdicts: tuple[Verdict, ...], errors: list[Exception]) -> None:
    if not verdicts or not all(verdict.failed for verdict in verdicts):
        return
    reason = verdicts[0].reason
    said = f" ({type(errors[0]).__name__}: {errors[0]})" if errors else ""
    raise EgpoError(
        f"the judge failed on all {len(verdicts)} responses: {reason}{said}",
        where="task",
        fix="nothing can be learnt from this; mend the task's `judge`, or see `egpo doctor` for the sandbox",
    ) from (errors[0] if errors else None)
