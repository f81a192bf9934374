"""What is asked of a model under evaluation, and what it answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from egpo.errors import InputError
from egpo.tasks import Problem, Task

ProgressCallback = Callable[[int, int], None]
"""Told how many responses are there, out of how many."""


def ignore_progress(done: int, total: int) -> None:
    """For callers without a screen."""


@dataclass(frozen=True)
class Sampling:
    """`n` responses to each problem; temperature 0 is greedy, and then one says all. `max_tokens` of None: 1,024, or
    as many as fit the model's context; a served model decides for itself."""

    n: int = 8
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    seed: int = 0
    top_k: int = 0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        faults = {
            f"n={self.n}": self.n < 1,
            f"temperature={self.temperature}": not 0 <= self.temperature < float("inf"),
            f"top_p={self.top_p}": not 0 < self.top_p <= 1,
            f"max_tokens={self.max_tokens}": self.max_tokens is not None and self.max_tokens < 1,
            f"seed={self.seed}": not 0 <= self.seed < 2**32,
            f"top_k={self.top_k}": self.top_k < 0,
            f"min_p={self.min_p}": not 0 <= self.min_p <= 1,
            f"n={self.n} greedy": self.temperature == 0 and self.n > 1,
        }
        for name, is_wrong in faults.items():
            if is_wrong:
                fix = "greedy responses are all the same: n=1" if "greedy" in name else "see `egpo eval --help`"
                raise InputError(name, where="sampling", fix=fix)

    @property
    def described(self) -> str:
        """`greedy`, or `n8-t0.7`: part of a file's name."""
        return "greedy" if self.temperature == 0 else f"n{self.n}-t{self.temperature:g}"


@dataclass(frozen=True)
class Response:
    """The `sample`-th response to `problems[problem]`.

    `num_tokens`, `finished` and `entropy` (a mean in nats by segment) are known or None, or not there: a server does
    not tell entropy. `failure` says why there is no text: nothing was learnt about the model.
    """

    problem: int
    sample: int
    prompt: str
    text: str
    num_tokens: int | None = None
    finished: bool | None = None
    entropy: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None


class Respondent(Protocol):
    """A model, wherever it runs."""

    @property
    def label(self) -> str:
        """What tables call it."""
        ...

    def respond(
        self, task: Task, problems: Sequence[Problem], sampling: Sampling, watch: ProgressCallback
    ) -> list[Response]:
        """`sampling.n` responses to each problem. A problem whose prompt does not fit the model has none."""
        ...
