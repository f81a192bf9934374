"""A verdict on every response of a batch."""

from egpo.local.rollouts import Rollouts
from egpo.rewards.verdict import Verdict
from egpo.tasks import Task
from egpo.tasks.judging import judge_texts


def judge(task: Task, rollouts: Rollouts, timeout_s: float | None = None) -> tuple[Verdict, ...]:
    """In the order of the rows. A judge that raises or takes longer than `timeout_s` fails that row, which teaches
    nothing then; one that fails every row ends the run."""
    problems = [rollouts.problems[index] for index in rollouts.problem_B.tolist()]
    return judge_texts(task, problems, rollouts.texts, timeout_s=timeout_s)
