"""The comparison of one training run with one other, problem by problem. P problems.

Responses to one problem are correlated, so the sampling unit is the problem. If the value of every problem is 0 or 1:
McNemar's test, which counts the problems that only one of the two models solved; without a true difference, either
model is equally likely to be that one. Otherwise: a cluster bootstrap over problems.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from egpo.comparisons.outcome import POWER, DifferenceTest, TDesign, rising_root, two_sided_p
from egpo.evals.intervals import NUM_RESAMPLES, SHARES, Estimate, mean_with_interval, resampled_means

Floats = NDArray[np.float64]
_NEVER = 1e-9
_ENOUGH_COUNTS = 150
"""Number of counts of discordant problems at which the power is evaluated; it changes slowly between neighbours."""
Bounds = tuple[float, float] | None
MCNEMAR, BOOTSTRAP = "McNemar, mid-p", "cluster bootstrap over problems"


def compare_over_problems(
    base_P: Floats,
    other_P: Floats,
    *,
    bounds: Bounds = None,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> DifferenceTest:
    """Test the difference between two runs that have one value per problem each, for at least two problems.

    `bounds` are the limits of the values. Default: the smallest and the largest value that occur.
    """
    # Rounded: differences that are equal in exact arithmetic may differ in their last bits.
    difference_P = (other_P - base_P).round(12)
    low, high = bounds or (float(min(base_P.min(), other_P.min())), float(max(base_P.max(), other_P.max())))
    limits = (low - high, high - low) if low < high else None
    delta = mean_with_interval(difference_P, seed=seed, bounds=limits, num_resamples=num_resamples)
    assert delta is not None
    base = float(base_P.mean())
    size = difference_P.size
    if np.isin([base_P, other_P], SHARES).all():
        lost, won = int((difference_P < 0).sum()), int((difference_P > 0).sum())
        return DifferenceTest(base, delta, mid_p(lost, won), MCNEMAR, Discordance((lost + won) / size, size))
    p_value = _p_by_resampling(difference_P, delta, limits, seed, num_resamples)
    design = TDesign(float(difference_P.std(ddof=1)) / math.sqrt(size), size - 1)
    return DifferenceTest(base, delta, p_value, BOOTSTRAP, design)


def _p_by_resampling(difference_P: Floats, delta: Estimate, limits: Bounds, seed: int, num_resamples: int) -> float:
    """Return the p-value of the bootstrap: the level at which the interval of the mean difference just touches 0.

    The smallest p-value is about 0.0001 with 10,000 resamples, and about 0.01 with fewer than ten problems.
    """
    if difference_P.min() == difference_P.max():
        return _p_of_agreement(delta, limits)
    means = resampled_means(difference_P, seed, num_resamples)
    distinct, counts = np.unique(means.round(12), return_counts=True)
    below = (np.cumsum(counts) - counts / 2) / means.size
    share = float(np.interp(0.0, distinct, below))
    size = difference_P.size
    return two_sided_p(NormalDist().inv_cdf(share) * math.sqrt((size - 1) / size), size - 1)


def _p_of_agreement(delta: Estimate, limits: Bounds) -> float:
    """Return the p-value for the case that all P problems have the same difference.

    No problem shows the opposite sign, so the worst case is tested: a share u of all problems has the largest possible
    difference of the opposite sign, with u such that the true mean is 0. The probability that a sample of P problems
    contains none of these is (1 - u)^P; it is doubled for a two-sided test.
    """
    if delta.value == 0 or limits is None:
        return 1.0
    opposite = limits[0] if delta.value > 0 else limits[1]
    share = delta.value / (delta.value - opposite)
    return min(1.0, 2 * (1 - share) ** delta.num_problems)


def mid_p(num_lost: int, num_won: int) -> float:
    """Return McNemar's two-sided mid-p value for the numbers of problems that only one of two models solved.

    With m the smaller of the two numbers: 2 P(fewer than m) + P(exactly m), under a fair coin. 1 if both are equal. The
    exact test, 2 P(at most m), has 2 to 4 % false positives instead of 5 %; mid-p is close to 5 % and rarely above
    (Fagerland et al. 2013, doi:10.1186/1471-2288-13-91).
    """
    tosses, fewer = num_lost + num_won, min(num_lost, num_won)
    if num_lost == num_won:
        return 1.0
    below, ways = 0, 1  # numbers of splits with fewer on the smaller side, and with exactly as many: exact integers
    for count in range(fewer):
        below, ways = below + ways, ways * (tosses - count) // (count + 1)
    return (2 * below + ways) / (1 << tosses)


@dataclass(frozen=True)
class Discordance:
    """A design for McNemar's test: the share of problems that only one model solved, and the number of problems."""

    share: float
    num_problems: int

    def detectable(self, alpha: float) -> float | None:
        """Return the smallest difference in accuracy that the test detects with 80 % power.

        None if the models agree on every problem, because the share of problems that only one of them solves is then
        unknown, or if no difference reaches that power.
        """
        if self.share == 0 or self.power(1.0, alpha) < POWER:
            return None
        return rising_root(lambda effect: self.power(effect, alpha) - POWER, 0.0, 1.0, tolerance=1e-5)

    def power(self, effect: float, alpha: float) -> float:
        """Return the probability that the test finds a true difference `effect`.

        The models are assumed to differ on `share` of the problems, or on `effect` if that is larger. The probability
        is averaged over the number of these problems and over how they are divided between the models.
        """
        share = max(self.share, effect)
        won = (1 + effect / share) / 2
        counts = _binomial(self.num_problems, share)
        likely = np.nonzero(counts > _NEVER)[0]
        some = likely[:: 1 + len(likely) // _ENOUGH_COUNTS]
        alarms = sum(counts[tosses] * _chance_of_alarm(tosses, won, alpha) for tosses in some.tolist())
        return float(alarms / counts[some].sum())


def _chance_of_alarm(tosses: int, won: float, alpha: float) -> float:
    most = _most_in_alarm(tosses, alpha)
    chances = _binomial(tosses, won)
    return float(chances[: most + 1].sum() + chances[tosses - most :].sum())


@lru_cache(maxsize=20_000)
def _most_in_alarm(tosses: int, alpha: float) -> int:
    """Return the largest m for which the mid-p value is below `alpha`; -1 if there is none.

    `tosses` is the number of problems that only one of the two models solved, and m is the number of those that the
    worse model solved.
    """
    chances = _binomial(tosses, 0.5)
    p_values = 2 * (np.cumsum(chances) - chances) + chances
    return int(np.nonzero(p_values[: (tosses + 1) // 2] < alpha)[0].max(initial=-1))


def _binomial(n: int, p: float) -> Floats:
    """Return the binomial probabilities of 0 to n successes in n trials, each with probability p."""
    if p in (0, 1):
        certain: Floats = np.zeros(n + 1)
        certain[round(n * p)] = 1
        return certain
    log_factorials = _log_factorials(1 << n.bit_length())[: n + 1]
    logits = np.arange(n + 1) * (math.log(p) - math.log1p(-p))
    chances: Floats = np.exp(log_factorials[n] + n * math.log1p(-p) + logits - log_factorials - log_factorials[::-1])
    return chances


@lru_cache
def _log_factorials(end: int) -> Floats:
    """Return the logarithms of 0! to (end - 1)!."""
    table: Floats = np.cumsum(np.log(np.maximum(np.arange(end), 1)))
    return table
