"""A task's self-check: its own gold answers must earn full reward."""

from itertools import islice

from egpo.errors import Fault
from egpo.tasks.protocol import Task


def check_gold(task: Task, split: str = "train", count: int = 16) -> list[Fault]:
    """What is wrong with the first `count` problems of a split; empty for a sound task."""
    faults = []
    for problem in islice(task.problems(split), count):
        verdict = task.judge(problem, task.gold(problem))
        if not verdict.correct:
            what = f"gold is judged `{verdict.reason}` (reward {verdict.reward})"
            faults.append(Fault(what, where=f"problem {problem.key}", fix="mend `gold` or `judge`"))
    return faults
