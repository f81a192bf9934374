"""The comparison of conditions that have several training runs with different seeds. S seeds, P problems.

All runs share the problems but not the seeds, so the variance of a difference of means is

    V = problems + seeds,    seeds = (1/S_base + 1/S_other) * (variance of a run's mean),
                             problems = (variance of the mean difference of a problem) / P - residual

where the residual (the variance that neither seed nor problem explains) is contained in both terms and must be counted
once. The term of the problems is known well. The term of the seeds is estimated from few runs, with
nu = S_base + S_other - 2 degrees of freedom. So the test is Student's t with degrees of freedom between two limits: nu
if the whole variance comes from seeds, infinity (the normal test over problems) if none does.

The variance of seeds is assumed to be equal in both conditions, as in Student's t-test. A plain model has no seed, so
it adds nothing to the term of the seeds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from egpo.comparisons.outcome import (
    ALPHA,
    POWER,
    DifferenceTest,
    chi_over_root_freedom,
    rising_root,
    t_quantile,
    two_sided_p,
)
from egpo.evals.intervals import Estimate

Floats = NDArray[np.float64]
METHOD = "t over training seeds, with the variance over problems"
_NUM_DESIGNS = 40
_NOTHING = 1e-24
_LEAST_SHARE, _LEAST_SLOPE = 1e-4, 0.02
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Spread:
    """The variance of a difference of means, as the sum of a term for problems and a term for seeds.

    `freedom` is the number of degrees of freedom of the term for seeds.
    """

    problems: float
    seeds: float
    freedom: int

    @property
    def is_nothing(self) -> bool:
        """Whether both terms are 0: all runs and problems gave the same difference."""
        return self.problems + self.seeds < _NOTHING

    @property
    def error(self) -> float:
        """Standard error of the difference of means."""
        return math.sqrt(self.problems + self.seeds)

    @property
    def whole_freedom(self) -> float:
        """The degrees of freedom of the difference's variance, which is the sum of a variance between problems and one
        between seeds. With nu degrees of freedom of the latter, and R its share of the sum:

            nu * (1 + c * (1/R^2 - 1)),    c = (nu - 1) / (nu + 2).

        Satterthwaite's formula has c = 1: a test at 5 % then has up to 7.8 % false positives with nu = 2. With this c
        it has between 4.1 and 5.2 % for nu = 2 at any true R, and closer to 5 % for larger nu. For nu = 1 it has
        between 2.7 and 5.0 %, and no c is better.
        """
        share = max(self.seeds / (self.problems + self.seeds), _LEAST_SHARE)
        slope = max(_LEAST_SLOPE, (self.freedom - 1) / (self.freedom + 2))
        return self.freedom * (1 + slope * (1 / share**2 - 1))

    def p_value(self, delta: float) -> float:
        """Return the two-sided p-value of a difference `delta`; 1 if nothing varies."""
        return 1.0 if self.is_nothing else two_sided_p(delta / self.error, self.whole_freedom)

    def reach(self, alpha: float) -> float:
        """Return half the width of the interval at level `alpha`: the difference whose p-value is `alpha`."""
        return self.error * t_quantile(1 - alpha / 2, self.whole_freedom)

    def detectable(self, alpha: float) -> float | None:
        """Return the smallest detectable difference; None if nothing varies."""
        if self.is_nothing:
            return None
        reaches = self._reaches(alpha)
        most = max(reaches) + 2 * self.error
        return rising_root(lambda effect: _power(effect, self.error, reaches) - POWER, 0.0, most, tolerance=1e-6)

    def power(self, effect: float, alpha: float) -> float:
        return _power(effect, self.error, self._reaches(alpha))

    def _reaches(self, alpha: float) -> list[float]:
        """Return half the width of the interval for several equally probable estimates of the term for seeds."""
        designs = chi_over_root_freedom(self.freedom, _NUM_DESIGNS)
        return [Spread(self.problems, self.seeds * s * s, self.freedom).reach(alpha) for s in designs]


def compare_over_seeds(
    base_SP: Floats, other_SP: Floats, *, has_seeds: tuple[bool, bool] = (True, True)
) -> DifferenceTest:
    """Test the difference between two conditions with at least three runs in total; one may have a single run.

    `has_seeds`: whether each condition is trained; a plain model is not. If nothing varies, there is no interval and
    the p-value is 1.
    """
    spread = spread_of(base_SP, other_SP, has_seeds)
    base, num_problems = float(base_SP.mean()), base_SP.shape[1]
    value = float(other_SP.mean()) - base
    if spread.is_nothing:
        return DifferenceTest(base, Estimate(value, None, None, num_problems), 1.0, METHOD, spread)
    reach = spread.reach(ALPHA)
    delta = Estimate(value, value - reach, value + reach, num_problems)
    return DifferenceTest(base, delta, spread.p_value(value), METHOD, spread)


def spread_of(base_SP: Floats, other_SP: Floats, has_seeds: tuple[bool, bool] = (True, True)) -> Spread:
    """Return estimates of the terms for problems and for seeds.

    The residual is subtracted from the term for problems, which is then set to 0 if it is negative. If both terms are
    0, because the means of the runs happen to be equal, the residual is returned as the term for problems.
    """
    num_problems, sides = base_SP.shape[1], (base_SP, other_SP)
    freedom = sum(len(side) for side in sides) - 2
    weight = sum(seeded / len(side) for side, seeded in zip(sides, has_seeds, strict=True))
    of_runs = sum(float(((side.mean(1) - side.mean()) ** 2).sum()) for side in sides)
    of_problems = float((other_SP.mean(0) - base_SP.mean(0)).var(ddof=1)) / num_problems
    residual = weight * sum(map(_residual, sides)) / freedom / (num_problems - 1) / num_problems
    spread = Spread(max(0.0, of_problems - residual), weight * of_runs / freedom, freedom)
    return Spread(residual, 0.0, freedom) if spread.is_nothing else spread


def _power(effect: float, error: float, reaches: Sequence[float]) -> float:
    """Return the probability that the interval excludes 0 if the true difference is `effect`."""
    found = [_NORMAL.cdf((effect - reach) / error) + _NORMAL.cdf((-effect - reach) / error) for reach in reaches]
    return sum(found) / len(found)


def _residual(side_SP: Floats) -> float:
    rest = side_SP - side_SP.mean(0) - side_SP.mean(1, keepdims=True) + side_SP.mean()
    return float((rest**2).sum())
