"""What the models of an experiment are asked once it is trained."""

from egpo.config import Config
from egpo.config.schema import Task
from egpo.errors import InputError
from egpo.evals.evaluate import Exam
from egpo.evals.intervals import default_ks
from egpo.evals.responses import Sampling


def exams_of(config: Config) -> list[Exam]:
    """The task that was trained on and the others of `eval.tasks`, each sampled, and greedily where that is wanted."""
    tasks = [config.task, *config.eval.tasks]
    names = [task.name for task in tasks]
    if twice := [name for name in names if names.count(name) > 1]:
        fix = "one set of settings a task: evaluate the other by hand, with `egpo eval --out`"
        raise InputError(f"`{twice[0]}` comes twice", where="eval.tasks", fix=fix)
    return [_exam(config, task, sampling) for task in tasks for sampling in _samplings(config)]


def _exam(config: Config, task: Task, sampling: Sampling) -> Exam:
    ks = (config.eval.k or default_ks(sampling.n)) if sampling.n > 1 else (1,)
    return Exam(task.name, task.settings, "test", config.eval.problems, sampling, ks)


def _samplings(config: Config) -> list[Sampling]:
    chosen, longest = config.eval, config.eval.max_tokens or config.rollout.max_response_tokens
    # Not the run's seed: runs that differ in it alone must sit the same exam.
    sampled = Sampling(chosen.n, chosen.temperature, chosen.top_p, longest)
    return [sampled, Sampling(1, 0.0, max_tokens=longest)] if chosen.greedy else [sampled]
