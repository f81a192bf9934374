"""Tasks of several turns: the environment and the row of a problem, and whole episodes written as one text."""

import atexit
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import finalize

from egpo.environments import EnvironmentHost, Episode, EpisodeLimits
from egpo.errors import InputError, nearest, notify_once
from egpo.rewards.verdict import Verdict
from egpo.tasks.protocol import Problem, Task

TURN_BREAK = "\n\n[next turn]\n\n"
"""Stands between the assistant's texts where a whole episode is one text."""


_HOSTS: dict[int, dict[str, EnvironmentHost]] = {}
"""The hosts of the environments of each task, by its `id`: a task need not be hashable. Closed with the task."""


def host_of(task: Task, problem: Problem) -> EnvironmentHost:
    """Return the host of a problem's environment, the same for all problems with this environment."""
    name = environment_of(task, problem)
    assert name is not None, "a task of single responses has no environment"
    hosts = _hosts_of(task)
    if name not in hosts:
        settings, reward = getattr(task, "environment_settings", {}), getattr(task, "environment_reward", None)
        host = hosts[name] = EnvironmentHost(name, settings, reward=reward)
        if not host.deterministic:
            notify_once(f"the environment `{name}` is not deterministic: a resumed run may differ from an unbroken one")
    return hosts[name]


def _hosts_of(task: Task) -> dict[str, EnvironmentHost]:
    if id(task) not in _HOSTS:
        _HOSTS[id(task)] = {}
        try:
            finalize(task, _close_hosts, id(task))
        except TypeError:  # a class with slots: the task is kept until the process ends, so that its id stays its own
            atexit.register(_close_hosts, id(task), task)
    return _HOSTS[id(task)]


def _close_hosts(key: int, task: Task | None = None) -> None:
    for host in _HOSTS.pop(key).values():
        host.close()


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


def gold_conversation(task: Task, problem: Problem) -> dict[str, Any]:
    """Return the messages and tools of an episode that earns the full reward, played with the task's `gold_turns`.

    `tools` are those that the chat template has to list. InputError if the task has no gold turns, or if they do not
    earn the full reward.
    """
    where = f"problem {problem.key!r:.60}"
    if not hasattr(task, "gold_turns"):
        fix = "give the task a method `gold_turns(problem)` that returns the assistant's texts"
        raise InputError("the task has no gold turns", where=where, fix=fix)
    played = played_conversation(task, problem, list(task.gold_turns(problem)))
    if not played.verdict.correct:
        what = f"the gold turns of the task do not earn the full reward ({played.verdict.reason})"
        raise InputError(what, where=where, fix="correct `gold_turns`, or the environment")
    return {"messages": played.messages, **({"tools": played.tools} if played.tools else {})}


@dataclass(frozen=True)
class PlayedConversation:
    """The messages of an episode, the tools that the chat template has to list, and the environment's verdict."""

    messages: list[dict[str, Any]]
    tools: list[Any]
    verdict: Verdict


def played_conversation(task: Task, problem: Problem, texts: Sequence[str]) -> PlayedConversation:
    """Play an episode in which the assistant says these texts, one after the other. Texts after its end are left
    out."""
    episode = Episode(host_of(task, problem), environment_row(problem), EpisodeLimits(turns=len(texts) + 1))
    start = episode.start()
    messages = list(start.messages)
    for text in texts:
        if episode.ending:
            break
        outcome = episode.assistant(text)
        messages += [{"role": "assistant", "content": text}, *outcome.messages]
    episode.stop()
    return PlayedConversation(messages, start.template_tools or [], episode.record().verdict)
