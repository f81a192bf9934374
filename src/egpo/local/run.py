"""The state of an RL run: policy, optimizer, task, stream of problems, stage timer; and how it is loaded."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from egpo.advantages.signals import Metrics
from egpo.config import Config
from egpo.controllers import Control, State, controller_named
from egpo.errors import InputError
from egpo.local.draws import Draws
from egpo.local.models.loading import load_policy
from egpo.local.models.lora import add_adapters
from egpo.local.models.policy import Policy
from egpo.local.sampling.prompt_lengths import prompt_lengths
from egpo.local.updates.micro_batches import TokenBudget, budget_for
from egpo.local.updates.optimizer import Optimizer
from egpo.local.updates.reference import Reference, load_reference
from egpo.local.updates.update import UpdateSettings
from egpo.tasks import Problem, Task, load_task


class Stages:
    """A timer for the stages of a step. It calls `on_enter(name, changes_state)` when a stage begins.

    This callback shows the stage in the live view, and decides whether a signal may abandon the step: a step can be
    abandoned and taken again until a stage begins that changes the state.
    """

    def __init__(self, on_enter: Callable[[str, bool], None] = lambda name, changes_state: None) -> None:
        self.on_enter = on_enter
        self._seconds: dict[str, float] = {}

    @contextmanager
    def enter(self, name: str, *, changes_state: bool = False) -> Iterator[None]:
        """Time the `with` block as the stage `name`.

        `changes_state`: the block changes the weights, the optimizer or anything else that a checkpoint contains.
        """
        self.on_enter(name, changes_state)
        start = time.perf_counter()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """Return the seconds spent in each stage since the last call of this method."""
        seconds, self._seconds = self._seconds, {}
        return seconds


class ProblemStream:
    """An endless stream of problems: every epoch contains each problem once, in a new order.

    `admits` says of each of some problems whether it is used; others (prompts too long) are skipped and counted in
    `num_left_out`. The order is a function of seed and epoch: `position` and `num_left_out` are the whole state.
    """

    def __init__(
        self, problems: Sequence[Problem], seed: int, admits: Callable[[Sequence[Problem]], list[bool]]
    ) -> None:
        if not len(problems):
            raise InputError("the task has no problems to train on", where="task", fix="prepare the training split")
        self._problems, self._seed, self._admits = problems, seed, admits
        self.position = self.num_left_out = 0
        self._order: tuple[int, list[int]] = (-1, [])

    @property
    def epoch(self) -> float:
        """The number of passes over the data so far, as a decimal number."""
        return self.position / len(self._problems)

    def take(self, count: int) -> list[Problem]:
        """Return the next `count` problems that `admits` accepts."""
        taken: list[Problem] = []
        refused_in_a_row = 0
        while len(taken) < count:
            problems = [self._next() for _ in range(count - len(taken))]
            admitted = self._admits(problems)
            taken += [problem for problem, is_admitted in zip(problems, admitted, strict=True) if is_admitted]
            self.num_left_out += admitted.count(False)
            refused_in_a_row = 0 if any(admitted) else refused_in_a_row + len(problems)
            if refused_in_a_row >= 2 * len(self._problems):
                raise InputError(
                    f"all {len(self._problems)} prompts are longer than allowed",
                    where="rollout.max_prompt_tokens",
                    fix="increase rollout.max_prompt_tokens",
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
    """The state of an RL run.

    `budget` is the number of tokens in one pass through the model; it shrinks if memory runs out. With a KL penalty
    (`update.kl` > 0), one of the two references is set: `reward_reference` if the penalty is subtracted from the
    reward (`update.kl_in`), `loss_reference` if it is a term of the loss. `control_state`: that of the controller
    (`update.controller`) for the next step.
    """

    config: Config
    policy: Policy
    optimizer: Optimizer
    task: Task
    stream: ProblemStream
    settings: UpdateSettings
    budget: TokenBudget
    reward_reference: Reference | None = None
    loss_reference: Reference | None = None
    stages: Stages = field(default_factory=Stages)
    control_state: State = field(default_factory=dict)

    def controlled(self, before: Metrics) -> Control:
        """Return what the controller sets in this step. `before`: the metrics that are known before the update."""
        update = self.config.update
        return controller_named(update.controller)(self.control_state, before, **update.settings_of_controller)


def open_run(config: Config) -> Run:
    """Load and check everything that a run needs, without writing any file."""
    task = load_task(config.task.name, **config.task.settings)
    problems = training_problems(task, config)  # before the model is loaded: mistakes in data are found in seconds
    policy = load_policy(config.model, config.seed)
    if config.model.lora is not None:
        add_adapters(policy.model, config.model.lora, config.seed)
    trainable = [(name, weight) for name, weight in policy.model.named_parameters() if weight.requires_grad]
    optimizer = Optimizer(trainable, config.update)
    stream = ProblemStream(problems, config.seed, _admits(policy, task, config))
    reference = load_reference(policy, config.model, config.seed) if config.update.kl > 0 else None
    return Run(
        config=config,
        policy=policy,
        optimizer=optimizer,
        task=task,
        stream=stream,
        settings=UpdateSettings.of(config),
        budget=budget_for(config.update.micro_tokens, policy),
        reward_reference=reference if config.update.kl_in == "reward" else None,
        loss_reference=reference if config.update.kl_in == "loss" else None,
    )


def training_problems(task: Task, config: Config) -> Sequence[Problem]:
    """Return the training split. Raise InputError if a user's task returns anything but a list of Problem."""
    problems = task.problems("train")
    if not (hasattr(problems, "__len__") and hasattr(problems, "__getitem__")):
        fix = "return a list of Problem"
        raise InputError(
            f"`problems` returned {type(problems).__name__}, not a sequence", where=f"task {config.task.name}", fix=fix
        )
    if not len(problems):
        fix = "prepare the data of this task"
        raise InputError("no problems in the split `train`", where=f"task {config.task.name}", fix=fix)
    if not isinstance(problems[0], Problem):
        what = f"`problems` returned a list of {type(problems[0]).__name__}"
        raise InputError(what, where=f"task {config.task.name}", fix="return a list of egpo.tasks.Problem")
    return problems


def _admits(policy: Policy, task: Task, config: Config) -> Callable[[Sequence[Problem]], list[bool]]:
    """Return a function that says which prompts are within `rollout.max_prompt_tokens` (None: all)."""
    longest = config.rollout.max_prompt_tokens
    if longest is None:
        return lambda problems: [True] * len(problems)
    episodes = config.rollout.episodes
    return lambda problems: [length <= longest for length in prompt_lengths(policy, task, problems, episodes)]
