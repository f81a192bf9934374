"""The probe itself: sample and judge responses to training problems without training, and compute its results."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from egpo.errors import InputError
from egpo.evals.evaluate import Evaluation, Exam, ExamProblems, evaluate
from egpo.evals.figures import tally_problems
from egpo.evals.intervals import Estimate, mean_with_interval, require_ks
from egpo.evals.responses import ProgressCallback, Respondent, ignore_progress
from egpo.probes.findings import ProbeFinding, Recommendation, find_faults, recommend
from egpo.probes.forecast import Forecast, count_rewards, forecast, reward_variances
from egpo.tasks import Problem, load_task
from egpo.tasks.loading import sandbox_tier


@dataclass(frozen=True)
class Probe:
    """The results of a probe. `pass_rates`: the share of correct responses for the key of each prompt with judged
    responses. `reward_variance`: the mean over prompts of the variance of rewards within a prompt."""

    evaluation: Evaluation
    pass_rates: dict[str, float]
    reward_variance: Estimate | None
    forecasts: tuple[Forecast, ...]
    recommendation: Recommendation
    findings: tuple[ProbeFinding, ...]


def draw_exam(exam: Exam) -> ExamProblems:
    """Load the task and draw `num_problems` of its problems at random; they keep the order of the split.

    They are random because a file may be sorted. Of problems with equal keys, one is drawn. Raise InputError if there
    are no problems or fewer than two responses per problem.
    """
    require_ks(exam.ks, exam.sampling.n)
    if exam.sampling.n < 2:
        raise InputError(
            f"{exam.sampling.n} response per problem is too few: rewards within a group are compared",
            where="--n",
            fix="use at least two responses per problem",
        )
    task = load_task(exam.task, **exam.settings)
    problems = _drawn(task.problems(exam.split), exam.num_problems, exam.sampling.seed)
    if not problems:
        where = f"task {exam.task}, split `{exam.split}`"
        raise InputError("the split has no problems", where=where, fix="prepare data that contains this split")
    return ExamProblems(exam, task, problems, sandbox_tier(task, exam.settings))


def probe(model: Respondent, paper: ExamProblems, watch: ProgressCallback = ignore_progress) -> Probe:
    return sum_up(evaluate(model, paper, watch))


def sum_up(evaluation: Evaluation) -> Probe:
    """Compute pass rates, reward variance, forecasts and findings from the judged responses."""
    seed, rewards = evaluation.exam.sampling.seed, count_rewards(evaluation.samples)
    tallies = tally_problems(evaluation.samples).items()
    variance = mean_with_interval(reward_variances(rewards).values(), seed=seed)
    forecasts = forecast(rewards, seed=seed)
    return Probe(
        evaluation=evaluation,
        pass_rates={key: tally.num_correct / tally.num_judged for key, tally in tallies if tally.num_judged},
        reward_variance=variance,
        forecasts=forecasts,
        recommendation=recommend(forecasts),
        findings=find_faults(evaluation.figures, variance),
    )


def _drawn(problems: Sequence[Problem], count: int | None, seed: int) -> tuple[Problem, ...]:
    order = list(range(len(problems)))
    random.Random(f"{seed}:probe").shuffle(order)
    chosen: dict[str, int] = {}
    for place in order:
        if count is not None and len(chosen) == count:
            break
        chosen.setdefault(problems[place].key, place)
    return tuple(problems[place] for place in sorted(chosen.values()))
