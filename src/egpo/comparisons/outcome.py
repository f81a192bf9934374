"""The outcome of a statistical test for a difference between two conditions, and Student's t.

Every test returns a `DifferenceTest`. Its `design` gives the smallest detectable difference: the smallest true
difference that the test finds with 80 % power. Degrees of freedom need not be whole numbers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Protocol

import numpy as np

from egpo.evals.intervals import LEVEL, Estimate

_NORMAL = NormalDist()
ALPHA = 1 - LEVEL
POWER = 0.8
"""The probability with which a test finds the smallest detectable difference."""
_NOTHING = 1e-12
_ALMOST_NORMAL = 1e7
"""The degrees of freedom from which Student's t and the normal distribution differ by less than 1e-7."""
_ENOUGH_TERMS, _GRID = 10_000, 4_001


class Design(Protocol):
    """The design of a test: the number of problems, runs or evaluations, and how much they vary."""

    def detectable(self, alpha: float) -> float | None:
        """Return the smallest true difference that a test at this level finds with 80 % power; None if unknown."""
        ...


@dataclass(frozen=True)
class DifferenceTest:
    """The result of a test. `base`: mean of the base condition. `delta`: mean of the other condition minus `base`, with
    its 95 % interval. `p_value`: that of the hypothesis of no difference."""

    base: float
    delta: Estimate
    p_value: float
    method: str
    design: Design

    @property
    def is_clear_of_zero(self) -> bool:
        """Whether the 95 % interval of the difference excludes 0."""
        low, high = self.delta.low, self.delta.high
        return low is not None and high is not None and (low > 0 or high < 0)


@dataclass(frozen=True)
class TDesign:
    """The design of a t-test: the standard error of the difference, and the degrees of freedom of that error."""

    error: float
    freedom: float

    def detectable(self, alpha: float) -> float | None:
        """Return the smallest detectable difference; None if the standard error is 0."""
        if self.error < _NOTHING:
            return None
        most = 2 * self.error * (t_quantile(1 - alpha / 2, self.freedom) + t_quantile(POWER, self.freedom))
        return rising_root(lambda effect: self.power(effect, alpha) - POWER, 0.0, most, tolerance=1e-6)

    def power(self, effect: float, alpha: float) -> float:
        return power_of_t(effect, self.error, self.freedom, alpha)


def t_cdf(t: float, freedom: float) -> float:
    """Return the cumulative distribution of Student's t.

    P(T <= t) = 1 - I_x(freedom / 2, 1/2) / 2 for t >= 0, where x = freedom / (freedom + t^2).
    """
    if freedom >= _ALMOST_NORMAL:
        return math.erfc(-t / math.sqrt(2)) / 2  # NormalDist's is 0 below -8.3
    root = math.sqrt(freedom)
    whole = math.hypot(root, t)  # t^2 may overflow
    tail = _incomplete_beta((root / whole) ** 2, (t / whole) ** 2, freedom / 2, 0.5) / 2
    return 1 - tail if t > 0 else tail


def two_sided_p(t: float, freedom: float) -> float:
    """Return the two-sided p-value of a t statistic: the probability of a value at least as far from 0 as `t`."""
    return 0.0 if math.isinf(t) else 2 * t_cdf(-abs(t), freedom)


def t_quantile(share: float, freedom: float) -> float:
    """Return the quantile of Student's t: the t with P(T <= t) = `share`."""
    tail = min(share, 1 - share)  # the lower side has more digits: 1 - 1e-17 is 1
    high = 1.0
    while t_cdf(-high, freedom) > tail:
        high *= 2
    distance = rising_root(lambda t: tail - t_cdf(-t, freedom), 0.0, high, tolerance=1e-10)
    return distance if share > 0.5 else -distance


def power_of_t(effect: float, error: float, freedom: float, alpha: float) -> float:
    """Return the probability that a two-sided t-test at `alpha` finds a true `effect` with this standard error.

    T' = (Z + effect / error) / S with S^2 = chi^2 / freedom, so P(|T'| > c) is the mean over S of
    Phi(effect / error - c S) + Phi(-effect / error - c S): a sum over the quantiles of S.
    """
    critical, shift = t_quantile(1 - alpha / 2, freedom), effect / error
    spread = chi_over_root_freedom(freedom)
    found = [_NORMAL.cdf(shift - critical * s) + _NORMAL.cdf(-shift - critical * s) for s in spread]
    return sum(found) / len(found)


def rising_root(function: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """Return the zero of an increasing function between `low` and `high`, by bisection to `tolerance * high`."""
    enough = tolerance * high
    while high - low > enough:
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2


@lru_cache(maxsize=256)
def chi_over_root_freedom(freedom: float, num: int = 200) -> tuple[float, ...]:
    """Return `num` equally probable values of the random variable s = sqrt(chi^2 / freedom).

    The density of s is proportional to s^(freedom-1) e^(-freedom s^2/2).
    """
    if freedom >= _ALMOST_NORMAL:
        return (1.0,)
    reach = 8 / math.sqrt(2 * freedom)
    s = np.linspace(max(1e-9, 1 - reach), 1 + reach, _GRID)
    log_density = (freedom - 1) * np.log(s) - freedom * s * s / 2
    mass = np.cumsum(np.exp(log_density - log_density.max()))
    shares = (np.arange(num) + 0.5) / num
    return tuple(np.interp(shares, mass / mass[-1], s).tolist())


def _incomplete_beta(x: float, rest: float, a: float, b: float) -> float:
    """Return I_x(a, b), the regularised incomplete beta function, by its continued fraction (DLMF 8.17.22).

    `rest` is 1 - x: the caller knows it to more digits than the difference has.
    """
    if x <= 0 or rest <= 0:
        return float(rest <= 0)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast only for smaller x
        return 1 - _incomplete_beta(rest, x, b, a)
    log_front = a * math.log(x) + b * math.log(rest) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log_front) * _beta_fraction(x, a, b) / a


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Evaluate the continued fraction of the incomplete beta function by Lentz's method, two terms at a time."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _ENOUGH_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            c, d = 1 + term / c, 1 / (1 + term * d)
            value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return value
