"""Runs in, verdicts out: who was compared, was it fair, what was found, and what could have been seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean

from egpo.comparisons.conditions import FACTOR, Condition, conditions_of
from egpo.comparisons.entrants import Entrant, read_entrants
from egpo.comparisons.fairness import inequalities, notes_on, refuse
from egpo.comparisons.mcnemar import compare_over_problems
from egpo.comparisons.outcome import Outcome
from egpo.comparisons.result import Comparison, ConditionRow, Contrast, Pair, RunRow, contrasts_of
from egpo.comparisons.seeds import compare_over_seeds
from egpo.comparisons.values import ACCURACY, Metric, RunFigures, figures_of_condition, shared_problems, table_SP
from egpo.errors import InputError


@dataclass(frozen=True)
class Wanted:
    """What is asked of a comparison: `factors` may differ, `exam` names the evaluation, `allow` what is not fair."""

    factors: Sequence[str] = FACTOR
    exam: str | None = None
    metrics: Sequence[str] = (ACCURACY,)
    allow: bool = False
    seed: int = 0


def compare_runs(paths: Sequence[Path], wanted: Wanted | None = None) -> Comparison:
    """InputError where there is nothing to compare, or the comparison is not fair and `allow` does not say go on."""
    wanted = wanted or Wanted()
    metrics = [Metric.named(name) for name in dict.fromkeys(wanted.metrics)]
    entrants = read_entrants(paths, wanted.exam)
    _require_one_task(entrants)
    conditions = conditions_of(entrants, wanted.factors)
    unfair = inequalities(conditions, wanted.factors)
    if not wanted.allow:
        refuse(unfair)
    figures = {metric: [figures_of_condition(condition, metric) for condition in conditions] for metric in metrics}
    return Comparison(
        title=_title(entrants),
        conditions=[_row(c, m, found) for m in metrics for c, found in zip(conditions, figures[m], strict=True)],
        contrasts=_contrasts(conditions, figures, wanted.seed),
        unfair=unfair,
        notes=notes_on(conditions, figures),
    )


def _contrasts(
    conditions: Sequence[Condition], figures: Mapping[Metric, Sequence[Sequence[RunFigures]]], seed: int
) -> list[Contrast]:
    """Every two conditions, in every metric."""
    places = [(metric, base, other) for metric in figures for base, other in combinations(range(len(conditions)), 2)]
    pairs = [Pair(m.name, conditions[base].label, conditions[other].label, m.is_share) for m, base, other in places]
    outcomes = [_outcome(figures[m][base], figures[m][other], m, seed) for m, base, other in places]
    return contrasts_of(pairs, outcomes)


def _outcome(base: Sequence[RunFigures], other: Sequence[RunFigures], metric: Metric, seed: int) -> Outcome:
    """On the problems that all of their runs have a value for."""
    problems = shared_problems([*base, *other])
    base_SP, other_SP = table_SP(base, problems), table_SP(other, problems)
    if len(base) == len(other) == 1:
        return compare_over_problems(base_SP[0], other_SP[0], bounds=metric.bounds, seed=seed)
    return compare_over_seeds(base_SP, other_SP, has_seeds=(base[0].is_trained, other[0].is_trained))


def _row(condition: Condition, metric: Metric, figures: Sequence[RunFigures]) -> ConditionRow:
    runs = [
        RunRow(run.run, run.seed, run.mean, len(run.evaluations), run.evaluations, run.evaluation_sd) for run in figures
    ]
    return ConditionRow(condition.label, metric.name, metric.is_share, fmean(run.mean for run in figures), runs)


def _require_one_task(entrants: Sequence[Entrant]) -> None:
    """No permission makes sense of two tasks."""
    tasks = {run.name: str(sitting.header.get("task")) for run in entrants for sitting in run.sittings}
    if len(set(tasks.values())) > 1:
        told = ", ".join(f"{name}: {task}" for name, task in tasks.items())
        what = f"the evaluations are of different tasks ({told})"
        raise InputError(what, where="egpo compare", fix="choose by --eval")


def _title(entrants: Sequence[Entrant]) -> str:
    """`countdown (test), 256 problems, n=8 temperature=1.0`."""
    sitting = entrants[0].sittings[0]
    header, sampling = sitting.header, sitting.section("sampling")
    task = f"{header.get('task')} ({header.get('split', 'test')})"
    asked = " ".join(f"{key}={sampling[key]}" for key in ("n", "temperature") if key in sampling)
    parts = [task, f"{header.get('num_problems', '?')} problems", asked]
    return ", ".join(part for part in parts if part)
