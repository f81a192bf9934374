"""What a task is: problems, a prompt for each, a judge, and an answer that the judge must accept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from egpo.data.rows import Message
from egpo.rewards.verdict import Verdict

METHODS = ("problems", "prompt", "judge", "gold")


@dataclass(frozen=True)
class Problem:
    """One thing to solve.

    `key` is its identity: problems with equal keys are the same problem, and never in both splits.
    `messages` is the prompt; `ground_truth` is what answers are judged by, JSON text where it has parts.
    `extra` is whatever else the task knows: text or whole numbers, written to `extra_info`.
    """

    key: str
    messages: tuple[Message, ...]
    ground_truth: str
    ability: str = ""
    extra: Mapping[str, str | int] = field(default_factory=dict)


@runtime_checkable
class Task(Protocol):
    """Data, prompt and reward in one place. A class with these four methods is a task: no base class, no registry."""

    def problems(self, split: str) -> Sequence[Problem]:
        """The problems of "train" or "test", the same at every call."""
        ...

    def prompt(self, problem: Problem) -> list[Message]:
        """Chat messages {role, content}, ready for `apply_chat_template`."""
        ...

    def judge(self, problem: Problem, text: str) -> Verdict:
        """The verdict on a response. Never raises on what a model may have written."""
        ...

    def gold(self, problem: Problem) -> str:
        """A response that earns full reward."""
        ...


def user(text: str) -> tuple[Message, ...]:
    """A prompt of one turn."""
    return ({"role": "user", "content": text},)
