"""The stages of a step: how long each took, and who wants to know when one begins.

The order of problems: every epoch all of them, shuffled anew. Where it stands is one number.

What lives as long as a run: the policy and its optimizer, the task, the order of problems.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from egpo.config import Config
from egpo.errors import InputError
from egpo.local.draws import Draws
from egpo.local.models.loading import load_policy
from egpo.local.models.lora import add_adapters
from egpo.local.models.policy import Policy, prompt_tokens
from egpo.local.updates.optimizer import Optimizer
from egpo.local.updates.reference import Reference, load_reference
from egpo.local.updates.update import UpdateSettings
from egpo.tasks import Problem, Task, load_task


class Stages:
    """`on_enter` is called with the name of each stage that begins: a live view shows it, an interrupt may end the step
    there. Seconds add up until `take` reads them."""

    def __init__(self, on_enter: Callable[[str], None] = lambda name: None) -> None:
        self.on_enter = on_enter
        self._seconds: dict[str, float] = {}

    @contextmanager
    def enter(self, name: str) -> Iterator[None]:
        self.on_enter(name)
        start = time.perf_counter()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """Seconds by stage since the last call."""
        seconds, self._seconds = self._seconds, {}
        return seconds


class ProblemStream:
    """Problems without end. `admits` may leave some out (prompts too long); they are counted in `num_left_out`.

    The order is a function of the seed and the epoch, so that `position` and `num_left_out` are all its state.
    """

    def __init__(self, problems: Sequence[Problem], seed: int, admits: Callable[[Problem], bool]) -> None:
        if not len(problems):
            raise InputError("the task has no problems to train on", where="task", fix="prepare its training split")
        self._problems, self._seed, self._admits = problems, seed, admits
        self.position = self.num_left_out = 0
        self._order: tuple[int, list[int]] = (-1, [])

    @property
    def epoch(self) -> float:
        """Passes over the data so far, in whole and part."""
        return self.position / len(self._problems)

    def take(self, count: int) -> list[Problem]:
        """The next `count` that are admitted."""
        taken: list[Problem] = []
        refused_in_a_row = 0
        while len(taken) < count:
            problem = self._next()
            if self._admits(problem):
                taken.append(problem)
                refused_in_a_row = 0
                continue
            self.num_left_out += 1
            refused_in_a_row += 1
            if refused_in_a_row >= 2 * len(self._problems):
                raise InputError(
                    f"every one of the {len(self._problems)} prompts is longer than allowed",
                    where="rollout.max_prompt_tokens",
                    fix="raise it",
                )
        return taken

    def _next(self) -> Problem:
        epoch, place = divmod(self.position, len(self._problems))
        if self._order[0] != epoch:
            self._order = (epoch, Draws(self._seed, epoch, "order").permutation(len(self._problems), "problems"))
        self.position += 1
        return self._problems[self._order[1][place]]


@dataclass(eq=False)
class Run:
    """`reference` is there where KL is asked for. `settings` hold what the update has learnt about memory."""

    config: Config
    policy: Policy
    optimizer: Optimizer
    task: Task
    stream: ProblemStream
    reference: Reference | None
    settings: UpdateSettings
    stages: Stages = field(default_factory=Stages)


def open_run(config: Config) -> Run:
    """Everything loaded and checked; nothing written."""
    task = load_task(config.task.name, **config.task.settings)
    policy = load_policy(config.model, config.seed)
    if config.model.lora is not None:
        add_adapters(policy.model, config.model.lora, config.seed)
    trainable = [(name, weight) for name, weight in policy.model.named_parameters() if weight.requires_grad]
    return Run(
        config=config,
        policy=policy,
        optimizer=Optimizer(trainable, config.update),
        task=task,
        stream=ProblemStream(training_problems(task, config), config.seed, _admits(policy, task, config)),
        reference=load_reference(policy, config.model, config.seed) if config.update.kl > 0 else None,
        settings=UpdateSettings.of(config, policy),
    )


def training_problems(task: Task, config: Config) -> Sequence[Problem]:
    problems = task.problems("train")
    if not (hasattr(problems, "__len__") and hasattr(problems, "__getitem__")):
        fix = "return a list of Problem"
        raise InputError(
            f"`problems` returned {type(problems).__name__}, no sequence", where=f"task {config.task.name}", fix=fix
        )
    if not len(problems):
        raise InputError("no problems in the split `train`", where=f"task {config.task.name}", fix="prepare its data")
    if not isinstance(problems[0], Problem):
        what = f"`problems` returned a list of {type(problems[0]).__name__}"
        raise InputError(what, where=f"task {config.task.name}", fix="return a list of egpo.tasks.Problem")
    return problems


def _admits(policy: Policy, task: Task, config: Config) -> Callable[[Problem], bool]:
    """Everything, unless prompts have a longest length: then what fits it."""
    longest = config.rollout.max_prompt_tokens
    if longest is None:
        return lambda problem: True
    return lambda problem: len(prompt_tokens(policy, task, [problem])[0]) <= longest
