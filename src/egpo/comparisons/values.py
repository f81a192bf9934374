"""The compared metric, with one value per run and problem, from all responses to the problem. S seeds, P problems."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from egpo.comparisons.compared_models import ComparedModel
from egpo.comparisons.conditions import Condition
from egpo.errors import InputError, nearest
from egpo.evals.figures import pass_at_k_by_problem, scores_by_problem, tally_problems
from egpo.evals.intervals import SHARES
from egpo.evals.responses import SampleRecord

Floats = NDArray[np.float64]
ACCURACY, SCORE = "accuracy", "score"
_PASS = re.compile(r"pass@([1-9]\d*)")


@dataclass(frozen=True)
class ComparedMetric:
    """A metric that can be compared, by its name: `accuracy`, `score`, or `pass@k`."""

    name: str

    @classmethod
    def named(cls, name: str) -> "ComparedMetric":
        """Return the metric with this name. Raise InputError if the name is unknown."""
        if name in (ACCURACY, SCORE) or _PASS.fullmatch(name):
            return cls(name)
        raise InputError(f"unknown metric `{name}`", where="--metric", fix=nearest(name, [ACCURACY, SCORE, "pass@8"]))

    @property
    def is_share(self) -> bool:
        """Whether values are between 0 and 1 and are shown in percent."""
        return self.name != SCORE

    @property
    def is_of_one_response(self) -> bool:
        """Whether one response to a problem is enough to compute the metric."""
        return self.name in (ACCURACY, SCORE, "pass@1")

    @property
    def bounds(self) -> tuple[float, float] | None:
        return SHARES if self.is_share else None

    def by_problem(self, samples: Sequence[SampleRecord]) -> dict[str, float]:
        """Return the metric of each problem from all its responses. Problems without a finite value are left out."""
        tallies = tally_problems(samples)
        found = _PASS.fullmatch(self.name)
        k = int(found[1]) if found else 1
        values = pass_at_k_by_problem(tallies, k) if self.is_share else scores_by_problem(tallies)
        return {key: value for key, value in values.items() if math.isfinite(value)}


@dataclass(frozen=True)
class RunFigures:
    """The values of one run in one metric. `evaluations`: the mean of each evaluation, or, if there is only one, of
    each pass over the problems. `by_problem`: the value of each problem, from the responses of all evaluations."""

    run: str
    seed: int | None
    evaluations: Sequence[float]
    by_problem: dict[str, float]
    is_trained: bool = True

    @property
    def mean(self) -> float:
        return fmean(self.by_problem.values())

    @property
    def evaluation_sd(self) -> float | None:
        return stdev(self.evaluations) if len(self.evaluations) > 1 else None


def figures_of_run(run: ComparedModel, metric: ComparedMetric) -> RunFigures:
    """Return the values of a run in one metric. Responses of repeated evaluations are pooled by problem."""
    together = metric.by_problem([sample for one in run.evaluations for sample in one.samples])
    if not together:
        most = max(one.section("sampling").get("n", 1) for one in run.evaluations)
        fix = f"each problem has {most} responses per evaluation; choose another --metric"
        raise InputError(f"{metric.name} cannot be computed for any problem", where=run.name, fix=fix)
    return RunFigures(run.name, run.seed, _evaluations(run, metric), together, run.is_trained)


def _evaluations(run: ComparedModel, metric: ComparedMetric) -> list[float]:
    parts: Sequence[Sequence[SampleRecord]] = [one.samples for one in run.evaluations]
    if len(parts) == 1 and metric.is_of_one_response:
        parts = run.evaluations[0].passes
    return [fmean(values) for part in parts if (values := metric.by_problem(part).values())]


def figures_of_condition(condition: Condition, metric: ComparedMetric) -> list[RunFigures]:
    return [figures_of_run(run, metric) for run in condition.runs]


def shared_problems(runs: Sequence[RunFigures]) -> list[str]:
    """Return the problems that have a value in every run. Raise InputError if there are fewer than two."""
    first, *others = [run.by_problem for run in runs]
    shared = [key for key in first if all(key in other for other in others)]
    if len(shared) < 2:
        held = ", ".join(f"{run.run} {len(run.by_problem)}" for run in runs)
        what = f"the evaluations share {len(shared) or 'no'} problem{'s' * (len(shared) != 1)} (of {held})"
        raise InputError(what, where="egpo compare", fix="evaluate all runs on the same problems")
    return shared


def table_SP(runs: Sequence[RunFigures], problems: Sequence[str]) -> Floats:
    return np.array([[run.by_problem[key] for key in problems] for run in runs], dtype=np.float64)
