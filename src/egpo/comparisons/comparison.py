"""The steps of a comparison: read runs, refuse an unfair comparison, test every pair of conditions, return verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean

from egpo.comparisons.compared_models import ComparedModel, read_compared_models
from egpo.comparisons.conditions import FACTOR, Condition, conditions_of
from egpo.comparisons.fairness import inequalities, notes_on, refuse
from egpo.comparisons.mcnemar import compare_over_problems
from egpo.comparisons.outcome import DifferenceTest
from egpo.comparisons.result import Comparison, ConditionRow, Contrast, Pair, RunRow, contrasts_of
from egpo.comparisons.seeds import compare_over_seeds
from egpo.comparisons.values import (
    ACCURACY,
    ComparedMetric,
    RunFigures,
    figures_of_condition,
    shared_problems,
    table_SP,
)
from egpo.errors import InputError


@dataclass(frozen=True)
class ComparisonOptions:
    """Options of a comparison. `factors`: settings that may differ between conditions. `exam`: pattern for the name of
    the evaluation. `allow`: compare although it is not fair. `seed`: random seed of the bootstrap."""

    factors: Sequence[str] = FACTOR
    exam: str | None = None
    metrics: Sequence[str] = (ACCURACY,)
    allow: bool = False
    seed: int = 0


def compare_runs(paths: Sequence[Path], options: ComparisonOptions | None = None) -> Comparison:
    """Compare runs and plain models. Raise InputError if there are fewer than two conditions, or if the comparison is
    not fair and `allow` is not set."""
    options = options or ComparisonOptions()
    metrics = [ComparedMetric.named(name) for name in dict.fromkeys(options.metrics)]
    models = read_compared_models(paths, options.exam)
    _require_one_task(models)
    conditions = conditions_of(models, options.factors)
    unfair = inequalities(conditions, options.factors)
    if not options.allow:
        refuse(unfair)
    figures = {metric: [figures_of_condition(condition, metric) for condition in conditions] for metric in metrics}
    return Comparison(
        title=_title(models),
        conditions=[_row(c, m, found) for m in metrics for c, found in zip(conditions, figures[m], strict=True)],
        contrasts=_contrasts(conditions, figures, options.seed),
        unfair=unfair,
        notes=notes_on(conditions, figures),
    )


def _contrasts(
    conditions: Sequence[Condition], figures: Mapping[ComparedMetric, Sequence[Sequence[RunFigures]]], seed: int
) -> list[Contrast]:
    """Test the difference between every pair of conditions in every metric."""
    places = [(metric, base, other) for metric in figures for base, other in combinations(range(len(conditions)), 2)]
    pairs = [Pair(m.name, conditions[base].label, conditions[other].label, m.is_share) for m, base, other in places]
    tests = [difference_test(figures[m][base], figures[m][other], m, seed) for m, base, other in places]
    return contrasts_of(pairs, tests)


def difference_test(
    base: Sequence[RunFigures], other: Sequence[RunFigures], metric: ComparedMetric, seed: int
) -> DifferenceTest:
    """Test the difference of two conditions on the problems for which all their runs have a value."""
    problems = shared_problems([*base, *other])
    base_SP, other_SP = table_SP(base, problems), table_SP(other, problems)
    if len(base) == len(other) == 1:
        return compare_over_problems(base_SP[0], other_SP[0], bounds=metric.bounds, seed=seed)
    return compare_over_seeds(base_SP, other_SP, has_seeds=(base[0].is_trained, other[0].is_trained))


def _row(condition: Condition, metric: ComparedMetric, figures: Sequence[RunFigures]) -> ConditionRow:
    runs = [
        RunRow(run.run, run.seed, run.mean, len(run.evaluations), run.evaluations, run.evaluation_sd) for run in figures
    ]
    return ConditionRow(condition.label, metric.name, metric.is_share, fmean(run.mean for run in figures), runs)


def _require_one_task(models: Sequence[ComparedModel]) -> None:
    """Raise InputError if the evaluations are of different tasks, even if `allow` is set."""
    tasks = {model.name: str(one.header.get("task")) for model in models for one in model.evaluations}
    if len(set(tasks.values())) > 1:
        listed = ", ".join(f"{name}: {task}" for name, task in tasks.items())
        what = f"the evaluations are of different tasks ({listed})"
        raise InputError(what, where="egpo compare", fix="choose one task with --eval")


def _title(models: Sequence[ComparedModel]) -> str:
    """Describe the evaluation in one line, such as `countdown (test), 256 problems, n=8 temperature=1.0`."""
    evaluation = models[0].evaluations[0]
    header, sampling = evaluation.header, evaluation.section("sampling")
    task = f"{header.get('task')} ({header.get('split', 'test')})"
    sampled = " ".join(f"{key}={sampling[key]}" for key in ("n", "temperature") if key in sampling)
    parts = [task, f"{header.get('num_problems', '?')} problems", sampled]
    return ", ".join(part for part in parts if part)
