"""Validate the policy on held-out problems. Tensor suffixes: B rows."""

from itertools import islice
from math import isfinite

from egpo.advantages.signals import Metrics
from egpo.errors import InputError
from egpo.local.collect import judge
from egpo.local.draws import Draws
from egpo.local.measure import measure
from egpo.local.run import Run
from egpo.local.sampling.prompt_lengths import prompt_lengths
from egpo.local.sampling.sample import sample
from egpo.tasks import Problem
from egpo.tasks.loading import data_source_of


def source_name(run: Run) -> str:
    """Return the name of the data in metric names: the task's data source or, for a user's task, the task's name."""
    return data_source_of(run.task, run.config.task.name)


def held_out_problems(run: Run) -> list[Problem]:
    """Return the first `validation.problems` problems of the test split, except those with too long prompts."""
    problems = list(islice(run.task.problems("test"), run.config.validation.problems))
    longest = run.config.rollout.max_prompt_tokens
    if longest is not None:
        lengths = prompt_lengths(run.policy, run.task, problems, run.config.rollout.episodes)
        problems = [problem for problem, length in zip(problems, lengths, strict=True) if length <= longest]
    if not problems:
        raise InputError(
            "no problems in the split `test` to validate on",
            where=f"task {run.config.task.name}",
            fix="prepare the data with a test split, or set validation.every=0 to train without validation",
        )
    return problems


def validate(run: Run) -> Metrics:
    """Sample the held-out problems at `validation.temperature` (0: greedy), and return metrics under verl's names.

    val-core/<source>/acc/mean@N      fraction fully correct, over N responses to each problem
    val-aux/<source>/reward/mean@N    mean reward
    val-aux/<source>/entropy/<segment>, response_length/mean, response_length/clip_ratio, error_frac

    Accuracy and reward are over the responses that could be judged: a failure of the judge is not a wrong answer, and
    counts in `error_frac`. The random numbers are the same at every validation, so that only the policy differs.
    """
    settings = run.config.validation
    rollout = run.config.rollout.model_copy(update={"n": settings.n, "temperature": settings.temperature})
    with run.stages.enter("validate"):
        draws, tags = Draws(run.config.seed, purpose="validation"), run.config.segments.tags
        rollouts = sample(run.policy, run.task, held_out_problems(run), rollout, draws, tags=tags)
        verdicts = judge(run.task, rollouts, run.config.task.judge_timeout_s)
        measures = measure(run.policy, rollouts, run.config.segments.tags)
    source, mean = source_name(run), f"mean@{settings.n}"
    judged = [verdict for verdict in verdicts if not verdict.failed]  # at least one, else `judge` would have raised
    entropies = {name: float(entropy_B.nanmean()) for name, entropy_B in measures.entropy.items()}
    measured = {name: entropy for name, entropy in entropies.items() if isfinite(entropy)}
    return {
        f"val-core/{source}/acc/{mean}": sum(verdict.correct for verdict in judged) / len(judged),
        f"val-aux/{source}/reward/{mean}": sum(verdict.reward for verdict in judged) / len(judged),
        f"val-aux/{source}/response_length/mean": float(rollouts.length_B.float().mean()),
        f"val-aux/{source}/response_length/clip_ratio": 1 - float(rollouts.finished_B.float().mean()),
        f"val-aux/{source}/error_frac": 1 - len(judged) / len(verdicts),
        **{f"val-aux/{source}/entropy/{name}": entropy for name, entropy in measured.items()},
    }
