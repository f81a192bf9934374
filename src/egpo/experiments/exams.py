"""The exams of an experiment: the evaluations of its models after training, as the recipe sets them.

This module imports no torch, because the dry run and the checks of recipes use it.
"""

from egpo.config import Config
from egpo.config.machine import this_machine
from egpo.config.schema import Task
from egpo.errors import InputError
from egpo.evals.evaluate import Exam
from egpo.evals.intervals import default_ks
from egpo.evals.responses import Sampling
from egpo.serving.engine_options import EngineOptions
from egpo.serving.served import require_later_options

THINKING = "enable_thinking"
"""The one variable of a chat template that can be set when a server starts."""


def exams_of(config: Config) -> list[Exam]:
    """Return the exams: the trained task and those of `eval.tasks`, each sampled and, if `eval.greedy`, greedy."""
    tasks = [config.task, *config.eval.tasks]
    names = [task.name for task in tasks]
    if twice := [name for name in names if names.count(name) > 1]:
        fix = "name each task once; evaluate the task with other settings by `egpo eval --out`"
        raise InputError(f"the task `{twice[0]}` is named twice", where="eval.tasks", fix=fix)
    return [_exam(config, task, sampling) for task in tasks for sampling in _samplings(config)]


def require_servable(config: Config) -> None:
    """Raise InputError if the recipe has a setting that cannot be passed to a server, which would ignore it."""
    unsupported = [f"model.template.{key}" for key in config.model.template if key != THINKING]
    unsupported += ["rollout.stop"] if config.rollout.stop or config.rollout.stop_tokens else []
    if unsupported:
        fix = "evaluate in this process: eval.serve=false"
        raise InputError(f"`{unsupported[0]}` cannot be passed to a server", where="eval.serve", fix=fix)


def engine_options(config: Config) -> EngineOptions:
    """Return the recipe's options of vLLM, for every server that is started to evaluate a model."""
    return EngineOptions(config.eval.engine_options, "eval.engine_options")


def require_evaluable(config: Config) -> None:
    """Raise InputError if the server that evaluates a model after the training would refuse its settings."""
    if config.eval.serve:
        require_servable(config)
    if config.eval.serve or config.eval.bfcl:
        require_later_options(engine_options(config), this_machine().environments.verl)


def _exam(config: Config, task: Task, sampling: Sampling) -> Exam:
    ks = (config.eval.k or default_ks(sampling.n)) if sampling.n > 1 else (1,)
    return Exam(task.name, task.settings, "test", config.eval.problems, sampling, ks)


def _samplings(config: Config) -> list[Sampling]:
    chosen, longest = config.eval, config.eval.max_tokens or config.rollout.max_response_tokens
    # The run's seed is not used, so that runs that differ only in their seed are evaluated alike.
    sampled = Sampling(chosen.n, chosen.temperature, chosen.top_p, longest)
    return [sampled, Sampling(1, 0.0, max_tokens=longest)] if chosen.greedy else [sampled]
