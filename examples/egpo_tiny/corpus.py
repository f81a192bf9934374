"""Generates the conversations for the supervised training of egpo-tiny: drawn problems, each answered by a habit."""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from egpo.data.rows import Message
from egpo.tasks import Problem
from egpo.tasks.episodes import TURN_BREAK, environment_of, played_conversation
from egpo.tasks.sourced import SourcedTask
from egpo.tasks.toolbox import Toolbox
from examples.egpo_tiny.lessons import LESSONS, STAGES, Lesson

SHARD = 5_000
"""Number of conversations that one process draws at a time."""


@dataclass(frozen=True)
class Example:
    """A problem of a lesson, and a response with a given habit."""

    lesson: Lesson
    habit: str
    problem: Problem
    response: str

    @property
    def messages(self) -> list[Message]:
        """The whole conversation: of an episode, with what the environment said between the turns."""
        task = _taught(self.lesson).task
        if environment_of(task, self.problem) is None:
            return [*self.problem.messages, {"role": "assistant", "content": self.response}]
        return played_conversation(task, self.problem, self.response.split(TURN_BREAK)).messages


def examples(count: int, seed: int, shard: int = 0, stage: str = "second") -> Iterator[Example]:
    """Yield `count` examples, the same for the same seed. A problem may occur several times with different answers;
    problems of a lesson's `unseen` splits never occur."""
    rng = random.Random(f"egpo-tiny:{seed}:{shard}")
    lessons = STAGES[stage]
    for lesson in rng.choices(lessons, [lesson.share for lesson in lessons], k=count):
        yield draw_example(lesson, rng)


def draw_example(lesson: Lesson, rng: random.Random, habit: str | None = None) -> Example:
    """Draw an example with the given habit, or with a habit drawn by the lesson's shares."""
    taught = _taught(lesson)
    problem = taught.task.draw(rng)
    while taught.is_unseen(problem):
        problem = taught.task.draw(rng)
    habit = habit or rng.choices(list(lesson.habits), list(lesson.habits.values()))[0]
    return Example(lesson, habit, problem, lesson.respond(problem, habit, rng))


def write_corpus(path: Path, count: int, seed: int, stage: str = "second") -> None:
    """Write JSON lines of {messages}, drawn in shards on all cores. The file appears only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    sizes = [min(SHARD, count - first) for first in range(0, count, SHARD)]
    with partial.open("w", encoding="utf-8") as file, ProcessPoolExecutor() as pool:
        file.writelines(pool.map(_shard_text, sizes, [seed] * len(sizes), range(len(sizes)), [stage] * len(sizes)))
    partial.replace(path)


def _shard_text(count: int, seed: int, shard: int, stage: str) -> str:
    conversations = ({"messages": example.messages} for example in examples(count, seed, shard, stage))
    return "".join(json.dumps(conversation, ensure_ascii=False) + "\n" for conversation in conversations)


@dataclass(frozen=True)
class _Taught:
    lesson: Lesson
    task: SourcedTask
    unseen: frozenset[str]

    def is_unseen(self, problem: Problem) -> bool:
        return any(key in self.unseen or self._is_tested(key) for key in self.lesson.keys(problem))

    def _is_tested(self, key: str) -> bool:
        """Whether a problem of the toolbox belongs to the test split: by its key, for test splits of any size."""
        return isinstance(self.task, Toolbox) and self.task.split_of(key) == "test"


@cache
def _taught(lesson: Lesson) -> _Taught:
    task = lesson.load()
    assert isinstance(task, SourcedTask)
    lessons = [one for one in LESSONS if one.task == lesson.task]
    unseen = (problem.key for one in lessons for split in one.unseen for problem in one.load().problems(split))
    return _Taught(lesson, task, frozenset(unseen))
