"""Several training runs on a side, which differ in their seed alone. S seeds, P problems.

Problems are shared by all runs, seeds are not, so the variance of a difference of means is

    V = problems + seeds,    seeds = (1/S_base + 1/S_other) * (variance of a run's mean),
                             problems = (variance of the mean difference of a problem) / P - residual

where the residual (what neither seed nor problem explains) is in both and counts once. The part of the problems is
known well, that of the seeds from a handful of runs: it may be many times what it seems. So what is averaged over is
what it may be, seeds * nu / chi^2 with nu = S_base + S_other - 2 degrees of freedom. Where the seeds have the whole
variance this is Student's t-test on the means of the runs; where they have none, the normal test over problems.

The variance of seeds is taken to be the same on both sides, as in Student's t-test. A plain model has no seed: its side
adds nothing to the part of the seeds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from egpo.comparisons.outcome import ALPHA, POWER, Outcome
from egpo.comparisons.students_t import chi_over_root_freedom, rising_root
from egpo.evals.bootstrap import Estimate

Floats = NDArray[np.float64]
METHOD = "t over training seeds, with the variance over problems"
_NUM_WEIGHTS, _NUM_DESIGNS = 100, 40
_NOTHING = 1e-24
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Spread:
    """Variance of a difference of means: the part of the problems, that of the seeds, and how well the latter is
    known."""

    problems: float
    seeds: float
    freedom: int

    @property
    def is_nothing(self) -> bool:
        return self.problems + self.seeds < _NOTHING

    def detectable(self, alpha: float) -> float | None:
        """None where nothing varied."""
        if self.is_nothing:
            return None
        error = math.sqrt(self.problems + self.seeds)
        reaches = self._reaches(alpha)
        most = max(reaches) + 2 * error
        return rising_root(lambda effect: _power(effect, error, reaches) - POWER, 0.0, most, tolerance=1e-6)

    def power(self, effect: float, alpha: float) -> float:
        return _power(effect, math.sqrt(self.problems + self.seeds), self._reaches(alpha))

    def _reaches(self, alpha: float) -> list[float]:
        """Half the widths of intervals: the seeds of another such experiment say other things of their variance."""
        designs = chi_over_root_freedom(self.freedom, _NUM_DESIGNS)
        return [_reach(Spread(self.problems, self.seeds * s * s, self.freedom), alpha) for s in designs]


def compare_over_seeds(base_SP: Floats, other_SP: Floats, *, has_seeds: tuple[bool, bool] = (True, True)) -> Outcome:
    """At least three runs in all; a side may have one alone. Where nothing varies, nothing can be said."""
    spread = spread_of(base_SP, other_SP, has_seeds)
    base, num_problems = float(base_SP.mean()), base_SP.shape[1]
    value = float(other_SP.mean()) - base
    if spread.is_nothing:
        return Outcome(base, Estimate(value, None, None, num_problems), 1.0, METHOD, spread)
    reach = _reach(spread, ALPHA)
    delta = Estimate(value, value - reach, value + reach, num_problems)
    return Outcome(base, delta, p_value(value, spread), METHOD, spread)


def spread_of(base_SP: Floats, other_SP: Floats, has_seeds: tuple[bool, bool] = (True, True)) -> Spread:
    """Unbiased parts; that of the problems is 0 at least, since the residual is taken off it."""
    num_problems, sides = base_SP.shape[1], (base_SP, other_SP)
    freedom = sum(len(side) for side in sides) - 2
    weight = sum(seeded / len(side) for side, seeded in zip(sides, has_seeds, strict=True))
    of_runs = sum(float(((side.mean(1) - side.mean()) ** 2).sum()) for side in sides)
    of_problems = float((other_SP.mean(0) - base_SP.mean(0)).var(ddof=1)) / num_problems
    residual = weight * sum(map(_residual, sides)) / freedom / (num_problems - 1) / num_problems
    return Spread(max(0.0, of_problems - residual), weight * of_runs / freedom, freedom)


def p_value(delta: float, spread: Spread) -> float:
    """Two-sided: the mean, over what the variance may be, of the normal test's p-value. 1 where nothing varies."""
    if spread.is_nothing:
        return 1.0
    return _mean_p(abs(delta), _errors(spread))


def _power(effect: float, error: float, reaches: Sequence[float]) -> float:
    """The chance that the interval is clear of zero."""
    seen = [_NORMAL.cdf((effect - reach) / error) + _NORMAL.cdf((-effect - reach) / error) for reach in reaches]
    return sum(seen) / len(seen)


def _reach(spread: Spread, alpha: float) -> float:
    """Half the width of the interval: the difference whose p-value is alpha."""
    errors = _errors(spread)
    high = math.sqrt(spread.problems + spread.seeds)
    while _mean_p(high, errors) > alpha:
        high *= 2
    return rising_root(lambda delta: alpha - _mean_p(delta, errors), 0.0, high, tolerance=1e-5)


def _errors(spread: Spread) -> list[float]:
    """What the standard error may be, each as probable as the next."""
    return [
        math.sqrt(spread.problems + spread.seeds / (s * s)) for s in chi_over_root_freedom(spread.freedom, _NUM_WEIGHTS)
    ]


def _mean_p(distance: float, errors: Sequence[float]) -> float:
    """Of the two-sided normal test."""
    return sum(math.erfc(distance / (error * math.sqrt(2))) for error in errors) / len(errors)


def _residual(side_SP: Floats) -> float:
    rest = side_SP - side_SP.mean(0) - side_SP.mean(1, keepdims=True) + side_SP.mean()
    return float((rest**2).sum())
