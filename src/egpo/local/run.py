"""What lives as long as a run: the policy and its optimizer, the task, the order of problems."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from egpo.config import Config
from egpo.errors import InputError
from egpo.local.policies.load import load_policy
from egpo.local.policies.lora import add_adapters
from egpo.local.policies.policy import Policy
from egpo.local.policies.prompts import prompt_tokens
from egpo.local.stages import Stages
from egpo.local.stream import ProblemStream
from egpo.local.updates.optimizer import Optimizer
from egpo.local.updates.reference import Reference, load_reference
from egpo.local.updates.update import UpdateSettings
from egpo.tasks import Problem, Task, load_task


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
