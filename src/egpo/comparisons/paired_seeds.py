"""The comparison of two methods that were trained with the same seeds and evaluated on the same problems.

S seeds, P problems; T tables at once, for simulations. With D[s, p] the difference of both methods for seed s and
problem p, and rest[s, p] what neither explains,

    D[s, p] = difference + seed[s] + problem[p] + rest[s, p]
    variance of the mean of D = seeds + problems
    seeds    = variance of the seeds' means / S                  S - 1 degrees of freedom
    alone    = variance of the problems' means / P               known well
    problems = alone - residual                                  at least 0
    residual = variance of the rest / (S P), which is contained in `seeds` and `alone` and is counted once

The 95 % interval is the difference plus or minus sqrt(t^2 seeds + z^2 problems), with the quantiles of Student's t at
S - 1 degrees of freedom and of the normal distribution. It is at least as wide as the interval over problems alone,
z sqrt(alone), because the means of three seeds may happen to be equal. The p-value is the level at which the interval
touches 0. It is the t-test over seeds if problems add nothing. In between it is conservative (as Cochran's t' is), also
far in the tails, where a correction for many tests looks. Methods may vary by different amounts between seeds, because
only their differences are used. `benchmarks/board_null.py` measures all this.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from egpo.comparisons.outcome import (
    ALPHA,
    POWER,
    DifferenceTest,
    chi_over_root_freedom,
    rising_root,
    two_sided_p,
)
from egpo.evals.intervals import Estimate

Floats = NDArray[np.float64]
METHOD = "paired over seeds and problems"
_NORMAL = NormalDist()
_NOTHING = 1e-24
_SMALLEST_P = 1e-15
_NUM_DESIGNS, _NUM_HALVINGS = 40, 60


@dataclass(frozen=True)
class TwoWaySpread:
    """The variance of the mean of a table S x P: a term for seeds, with `freedom` degrees of freedom, and one for
    problems. `alone`: the variance if seeds added nothing."""

    seeds: float
    problems: float
    alone: float
    freedom: int

    @property
    def is_nothing(self) -> bool:
        """Whether both terms are 0: all seeds and problems have the same value."""
        return max(self.seeds + self.problems, self.alone) < _NOTHING

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return math.sqrt(max(self.seeds + self.problems, self.alone))

    def p_value(self, mean: float) -> float:
        """Return the two-sided p-value of a true mean of 0; 1 if nothing varies."""
        if self.is_nothing:
            return 1.0
        terms = VarianceTerms(*(np.array([value]) for value in (self.seeds, self.problems, self.alone)))
        return float(p_values(np.array([mean]), terms, self.freedom)[0])

    def reach(self, alpha: float) -> float:
        """Return half the width of the interval at level `alpha`: the mean whose p-value is `alpha`."""
        z = -_NORMAL.inv_cdf(alpha / 2)
        t = float(np.interp(z, *_quantiles(self.freedom)))
        return math.sqrt(max(t**2 * self.seeds + z**2 * self.problems, z**2 * self.alone))

    def power(self, effect: float, alpha: float) -> float:
        """Return the probability that a test at level `alpha` finds a true mean `effect`, over the variances that other
        seeds would show."""
        designs = chi_over_root_freedom(self.freedom, _NUM_DESIGNS)
        reaches = [replace(self, seeds=self.seeds * s * s).reach(alpha) for s in designs]
        return sum(_beyond(effect, reach, self.error) for reach in reaches) / len(reaches)

    def detectable(self, alpha: float) -> float | None:
        """Return the smallest true mean that a test at level `alpha` finds with 80 % power; None if nothing varies."""
        if self.is_nothing:
            return None
        most = 4 * self.reach(alpha) + 2 * self.error
        return rising_root(lambda effect: self.power(effect, alpha) - POWER, 0.0, most, tolerance=1e-4)


def compare_paired_seeds(base_SP: Floats, other_SP: Floats) -> DifferenceTest:
    """Test the difference of two methods. Row s of both tables has the same seed; there are two seeds at least."""
    mean, spread = mean_over_seeds(other_SP - base_SP)
    return DifferenceTest(float(base_SP.mean()), mean, spread.p_value(mean.value), METHOD, spread)


def mean_over_seeds(table_SP: Floats) -> tuple[Estimate, TwoWaySpread]:
    """Return the mean of a table with its 95 % interval over seeds and problems, and its spread.

    There is no interval if nothing varies.
    """
    found = variance_terms(table_SP[None])
    seeds, problems, alone = float(found.seeds_T[0]), float(found.problems_T[0]), float(found.alone_T[0])
    spread = TwoWaySpread(seeds, problems, alone, len(table_SP) - 1)
    value, num_problems = float(table_SP.mean()), table_SP.shape[1]
    if spread.is_nothing:
        return Estimate(value, None, None, num_problems), spread
    reach = spread.reach(ALPHA)
    return Estimate(value, value - reach, value + reach, num_problems), spread


@dataclass(frozen=True)
class VarianceTerms:
    """The terms of `TwoWaySpread` for T tables."""

    seeds_T: Floats
    problems_T: Floats
    alone_T: Floats


def variance_terms(table_TSP: Floats) -> VarianceTerms:
    """Return the terms of the variance of each table's mean."""
    _, num_seeds, num_problems = table_TSP.shape
    of_seeds_TS, of_problems_TP, mean_T = table_TSP.mean(2), table_TSP.mean(1), table_TSP.mean((1, 2))
    rest_TSP = table_TSP - of_seeds_TS[:, :, None] - of_problems_TP[:, None] + mean_T[:, None, None]
    freedom = (num_seeds - 1) * (num_problems - 1)
    residual_T = np.einsum("tsp,tsp->t", rest_TSP, rest_TSP) / freedom / (num_seeds * num_problems)
    alone_T = of_problems_TP.var(1, ddof=1) / num_problems
    return VarianceTerms(of_seeds_TS.var(1, ddof=1) / num_seeds, np.maximum(alone_T - residual_T, 0.0), alone_T)


def p_values(mean_T: Floats, terms: VarianceTerms, freedom: int) -> Floats:
    """Return the two-sided p-value of each mean: that of the z whose interval has half the width |mean|."""
    z_K, t_K = _quantiles(freedom)
    low_T, high_T, square_T = np.zeros_like(mean_T), np.full_like(mean_T, z_K[-1]), mean_T**2
    for _ in range(_NUM_HALVINGS):
        z_T = (low_T + high_T) / 2
        reach_T = np.interp(z_T, z_K, t_K) ** 2 * terms.seeds_T + z_T**2 * terms.problems_T
        is_less_T = np.maximum(reach_T, z_T**2 * terms.alone_T) < square_T
        low_T, high_T = np.where(is_less_T, z_T, low_T), np.where(is_less_T, high_T, z_T)
    return np.array([2 * _NORMAL.cdf(-z) for z in low_T.tolist()])


@lru_cache(maxsize=64)
def _quantiles(freedom: int) -> tuple[Floats, Floats]:
    """Return quantiles of the normal distribution and of Student's t with equal tail probabilities, ascending."""
    z, t = [0.0], [0.0]
    at = 1e-3
    while (p_value := two_sided_p(at, freedom)) > _SMALLEST_P:
        z.append(-_NORMAL.inv_cdf(p_value / 2))
        t.append(at)
        at *= 1.01
    return np.array(z), np.array(t)


def _beyond(effect: float, reach: float, error: float) -> float:
    """Return the probability that an estimate of `effect` with this standard error is farther from 0 than `reach`."""
    return _NORMAL.cdf((effect - reach) / error) + _NORMAL.cdf((-effect - reach) / error)
