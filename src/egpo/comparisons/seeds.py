"""Several training runs on a side, which differ in their seed alone. S seeds, P problems.

Problems are shared by all runs, seeds are not, so the variance of a difference of means is

    V = problems + seeds,    seeds = (1/S_base + 1/S_other) * (variance of a run's mean),
                             problems = (variance of the mean difference of a problem) / P - residual

where the residual (what neither seed nor problem explains) is in both and counts once. The part of the problems is
known well, that of the seeds from a handful of runs, with nu = S_base + S_other - 2 degrees of freedom. So the test is
Student's t with degrees of freedom in between: nu where the seeds have the whole variance, as many as one likes (the
normal test over problems) where they have none.

The variance of seeds is taken to be the same on both sides, as in Student's t-test. A plain model has no seed: its side
adds nothing to the part of the seeds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from egpo.comparisons.outcome import ALPHA, POWER, Outcome, chi_over_root_freedom, rising_root, t_quantile, two_sided_p
from egpo.evals.intervals import Estimate

Floats = NDArray[np.float64]
METHOD = "t over training seeds, with the variance over problems"
_NUM_DESIGNS = 40
_NOTHING = 1e-24
_LEAST_SHARE, _LEAST_SLOPE = 1e-4, 0.02
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

    @property
    def error(self) -> float:
        """Standard error of the difference."""
        return math.sqrt(self.problems + self.seeds)

    @property
    def whole_freedom(self) -> float:
        """Degrees of freedom of the whole variance, of which the seeds have the share R:

            nu * (1 + c * (1/R^2 - 1)),    c = (nu - 1) / (nu + 2).

        Satterthwaite's have c = 1, for which false alarms reach 7.8 % with nu = 2. With this c they are between 4.1 and
        5.2 % for nu = 2 whatever R truly is, and nearer to 5 % for more; nu = 1 has no c that does (2.7 to 5.0 %).
        """
        share = max(self.seeds / (self.problems + self.seeds), _LEAST_SHARE)
        slope = max(_LEAST_SLOPE, (self.freedom - 1) / (self.freedom + 2))
        return self.freedom * (1 + slope * (1 / share**2 - 1))

    def p_value(self, delta: float) -> float:
        """Two-sided. 1 where nothing varies."""
        return 1.0 if self.is_nothing else two_sided_p(delta / self.error, self.whole_freedom)

    def reach(self, alpha: float) -> float:
        """Half the width of the interval: the difference whose p-value is alpha."""
        return self.error * t_quantile(1 - alpha / 2, self.whole_freedom)

    def detectable(self, alpha: float) -> float | None:
        """None where nothing varied."""
        if self.is_nothing:
            return None
        reaches = self._reaches(alpha)
        most = max(reaches) + 2 * self.error
        return rising_root(lambda effect: _power(effect, self.error, reaches) - POWER, 0.0, most, tolerance=1e-6)

    def power(self, effect: float, alpha: float) -> float:
        return _power(effect, self.error, self._reaches(alpha))

    def _reaches(self, alpha: float) -> list[float]:
        """The seeds of another such experiment say other things of their variance."""
        designs = chi_over_root_freedom(self.freedom, _NUM_DESIGNS)
        return [Spread(self.problems, self.seeds * s * s, self.freedom).reach(alpha) for s in designs]


def compare_over_seeds(base_SP: Floats, other_SP: Floats, *, has_seeds: tuple[bool, bool] = (True, True)) -> Outcome:
    """At least three runs in all; a side may have one alone. Where nothing varies, nothing can be said."""
    spread = spread_of(base_SP, other_SP, has_seeds)
    base, num_problems = float(base_SP.mean()), base_SP.shape[1]
    value = float(other_SP.mean()) - base
    if spread.is_nothing:
        return Outcome(base, Estimate(value, None, None, num_problems), 1.0, METHOD, spread)
    reach = spread.reach(ALPHA)
    delta = Estimate(value, value - reach, value + reach, num_problems)
    return Outcome(base, delta, spread.p_value(value), METHOD, spread)


def spread_of(base_SP: Floats, other_SP: Floats, has_seeds: tuple[bool, bool] = (True, True)) -> Spread:
    """Unbiased parts; that of the problems is 0 at least, since the residual is taken off it. Where the means of runs
    happen to be equal, so that both are 0, the residual is what is left: V is never less."""
    num_problems, sides = base_SP.shape[1], (base_SP, other_SP)
    freedom = sum(len(side) for side in sides) - 2
    weight = sum(seeded / len(side) for side, seeded in zip(sides, has_seeds, strict=True))
    of_runs = sum(float(((side.mean(1) - side.mean()) ** 2).sum()) for side in sides)
    of_problems = float((other_SP.mean(0) - base_SP.mean(0)).var(ddof=1)) / num_problems
    residual = weight * sum(map(_residual, sides)) / freedom / (num_problems - 1) / num_problems
    spread = Spread(max(0.0, of_problems - residual), weight * of_runs / freedom, freedom)
    return Spread(residual, 0.0, freedom) if spread.is_nothing else spread


def _power(effect: float, error: float, reaches: Sequence[float]) -> float:
    """The chance that the interval is clear of zero."""
    seen = [_NORMAL.cdf((effect - reach) / error) + _NORMAL.cdf((-effect - reach) / error) for reach in reaches]
    return sum(seen) / len(seen)


def _residual(side_SP: Floats) -> float:
    rest = side_SP - side_SP.mean(0) - side_SP.mean(1, keepdims=True) + side_SP.mean()
    return float((rest**2).sum())
