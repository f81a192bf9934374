"""A custom task as verl's reward: verl's reward workers call the task's own `judge`.

`task` is the task's name, `module:Class`; `settings` are its settings as JSON. The problem is found by the split and
the index in `extra_info`.
"""

import json
from functools import lru_cache
from typing import Any

from egpo.tasks import Task, load_task
from egpo.tasks.loading import worker_settings
from egpo.tasks.protocol import judge_texts


def compute_score(
    data_source: Any,
    solution_str: Any,
    ground_truth: Any,
    extra_info: Any = None,
    *,
    task: str,
    settings: str = "{}",
    judge_timeout_s: float | None = None,
    **_: Any,
) -> dict[str, float | str]:
    """Judge one response. Return `score`, `acc`, `failed`, and as text `reason` and `judged_by`.

    A judge that raises or exceeds its time limit ends the run: verl cannot leave a response out, and would learn from
    a score of 0.
    """
    judge = _task(task, settings)
    problem = judge.problems(extra_info["split"])[int(extra_info["index"])]
    verdict = judge_texts(judge, [problem], [str(solution_str)], timeout_s=judge_timeout_s)[0]
    return {
        "score": verdict.reward,
        "acc": float(verdict.correct),
        "failed": float(verdict.failed),
        "reason": verdict.reason,
        "judged_by": task,
    }


@lru_cache(maxsize=8)
def _task(name: str, settings: str) -> Task:
    """Return the task, which is loaded once per process."""
    return load_task(name, **worker_settings(name, json.loads(settings)))
