"""The lessons of egpo-tiny: tasks of the package with small settings, and the habits of answering each.

A habit is a way to answer, good or bad, with a fixed share of the lesson's examples. The model learns in two stages:
the first has four tasks of single responses, the second also has episodes.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from egpo.tasks import Problem, Task, load_task
from examples.egpo_tiny import countdown, programs, tool_calls, toolbox, word_problems

Respond = Callable[[Problem, str, random.Random], str]
"""(problem, habit, rng) -> response. The texts of an episode stand in one response, with `TURN_BREAK` between them."""


def _own_key(problem: Problem) -> Iterable[str]:
    return (problem.key,)


@dataclass(frozen=True, eq=False)
class Lesson:
    """The part of the corpus for one task.

    `share` is its weight among the conversations, and `habits` maps each habit to its fraction of the lesson. Problems
    of the `unseen` splits are left out; `keys` are the keys of all problems that a problem contains.
    """

    task: str
    share: float
    habits: Mapping[str, float]
    respond: Respond
    settings: Mapping[str, Any] = field(default_factory=dict)
    unseen: tuple[str, ...] = ("test",)
    name: str = ""
    keys: Callable[[Problem], Iterable[str]] = _own_key

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.task)

    def load(self, **more: Any) -> Task:
        return load_task(self.task, **{**self.settings, **more})


FIRST: tuple[Lesson, ...] = (
    Lesson(
        "countdown",
        0.45,
        countdown.HABITS,
        countdown.respond,
        {
            "min_numbers": 3,
            "max_numbers": 3,
            "max_number": 12,
            "max_target": 60,
            "prompt_format": "Make {target} from {numbers}.",
            "train": 1024,
            "test": 256,
        },
        unseen=("train", "test"),
    ),
    Lesson(
        "gsm8k",
        0.2,
        word_problems.HABITS,
        word_problems.respond,
        {"max_value": 200, "train": 2048, "test": 512},
        unseen=("train", "test"),
    ),
    # Training problems are included: some tools have so few requests that leaving them out would remove the tool.
    Lesson(
        "function_calling",
        0.2,
        tool_calls.HABITS,
        tool_calls.respond,
        {
            "max_turns": 1,
            "max_calls": 1,
            "max_tools": 2,
            "describe_tools": False,
            "instruction": "",
            "train": 2048,
            "test": 256,
        },
    ),
    Lesson("code", 0.15, programs.HABITS, programs.respond, {"train": 192, "test": 48}),
)
_WORLDS = {"tools": "signatures", "distractors": 1}
SECOND: tuple[Lesson, ...] = (
    Lesson(
        "toolbox",
        0.45,
        toolbox.HABITS,
        toolbox.respond,
        {**_WORLDS, "chains": 0.2, "missing": 0.2, "errors": 0.1, "train": 1024, "test": 256},
        unseen=("train", "test"),
        keys=toolbox.keys,
    ),
    Lesson(
        "toolbox",
        0.1,
        toolbox.HABITS,
        toolbox.respond,
        {**_WORLDS, "min_requests": 2, "max_requests": 2, "train": 1024, "test": 256},
        unseen=("train", "test"),
        name="toolbox_two",
        keys=toolbox.keys,
    ),
)
LESSONS = (*FIRST, *SECOND)
STAGES: Mapping[str, tuple[Lesson, ...]] = {"first": FIRST, "second": LESSONS}
"""The lessons of each stage. The second repeats the first, so that nothing is forgotten."""
