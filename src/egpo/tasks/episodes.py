"""Tasks of several turns: the environment and the row of a problem, and whole episodes written as one text."""

from collections.abc import Mapping
from typing import Any

from egpo.environments import EnvironmentHost, Episode, EpisodeLimits
from egpo.errors import InputError, nearest
from egpo.rewards.verdict import Verdict
from egpo.tasks.protocol import Problem, Task

TURN_BREAK = "\n\n[next turn]\n\n"
"""Stands between the assistant's texts where a whole episode is one text."""


def environment_of(task: Task, problem: Problem) -> str | None:
    """Return the name of the environment of a problem; None for a task of single responses.

    InputError if the task has several and the problem does not name one of them.
    """
    named = getattr(task, "environment", None)
    if not isinstance(named, Mapping):
        return named
    chosen = problem.extra.get("environment")
    if chosen not in named:
        what = f"the problem has `environment={chosen!r}`, which is not an environment of the task"
        raise InputError(what, where=f"problem {problem.key}", fix=nearest(str(chosen), [str(name) for name in named]))
    return str(named[chosen])


def environment_row(problem: Problem) -> dict[str, Any]:
    """Return the row that an environment's `reset` gets: `prompt`, `ground_truth`, and the problem's extra values.

    As in TRL, the column `environment`, which chooses among several, is not passed on.
    """
    extra = {name: value for name, value in problem.extra.items() if name != "environment"}
    return {**extra, "prompt": [dict(message) for message in problem.messages], "ground_truth": problem.ground_truth}


def judge_episode(host: EnvironmentHost, problem: Problem, text: str) -> Verdict:
    """Play an episode that is written as one text, with `TURN_BREAK` between the turns, and return its verdict."""
    texts = text.split(TURN_BREAK)
    episode = Episode(host, environment_row(problem), EpisodeLimits(turns=len(texts) + 1))
    episode.start()
    for said in texts:
        if episode.ending:
            break
        episode.assistant(said)
    episode.stop()
    return episode.record().verdict
