"""95 % intervals of means over problems, by a bootstrap over problems; and the unbiased estimate of pass@k.

Responses to the same problem are not independent, so the bootstrap resamples problems, each with the mean of its
responses. A resample's mean depends only on how often it contains each value, so these counts are drawn from a
multinomial distribution. In the names of arrays, P is the number of problems.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from egpo.errors import InputError

LEVEL = 0.95
NUM_RESAMPLES = 10_000
SHARES = (0.0, 1.0)
"""The least and the greatest possible value of a fraction."""

Floats = NDArray[np.float64]
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Estimate:
    """A mean over `num_problems` problems with its 95 % interval. `low` and `high` are None if this is unknown."""

    value: float
    low: float | None
    high: float | None
    num_problems: int


def mean_with_interval(
    values: Iterable[float],
    *,
    seed: int = 0,
    bounds: tuple[float, float] | None = None,
    num_resamples: int = NUM_RESAMPLES,
) -> Estimate | None:
    """Return the mean of one value per problem, with its 95 % interval; None if there are no values. NaN is ignored.

    The interval is the bootstrap's percentile interval, widened to match Student's t (Hesterberg 2015). Its ends are
    quantiles of the mid-distribution (see `mid_quantiles`), because means of fractions take few distinct values,
    between which a plain quantile would jump. Its coverage is better than that of percentile and BCa intervals
    (docs/evaluation.md). If all values are equal, resampling gives no interval, and `_agreed` is used. `bounds` are the
    least and the greatest possible value.
    """
    value_P = np.asarray(list(values), dtype=np.float64)
    value_P = value_P[~np.isnan(value_P)]
    if not value_P.size:
        return None
    mean = float(value_P.mean())
    if value_P.min() == value_P.max():
        return Estimate(float(value_P[0]), *_agreed(float(value_P[0]), value_P.size, bounds), value_P.size)
    low, high = mid_quantiles(resampled_means(value_P, seed, num_resamples), percentile_tails(value_P.size))
    return Estimate(mean, min(low, mean), max(high, mean), value_P.size)


def resampled_means(value_P: Floats, seed: int, num_resamples: int = NUM_RESAMPLES) -> Floats:
    """Return the means of `num_resamples` bootstrap samples: each holds P of the values, drawn with replacement.

    The count of each distinct value is drawn from a multinomial distribution, which is equivalent and faster.
    """
    distinct, counts = np.unique(value_P, return_counts=True)
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(value_P.size, counts / value_P.size, size=num_resamples)
    means: Floats = drawn @ distinct / value_P.size
    return means


def mid_quantiles(means: Floats, shares: tuple[float, float]) -> tuple[float, float]:
    """Return for each probability in `shares` the x at which P(X < x) + P(X = x) / 2 reaches it.

    X is a random one of `means`. The function is interpolated linearly between the values that occur.
    """
    # The same numbers added in a different order give sums that differ in their last bits.
    distinct, counts = np.unique(means.round(12), return_counts=True)
    below = (np.cumsum(counts) - counts / 2) / means.size
    low, high = np.interp(shares, below, distinct)
    return float(low), float(high)


def student_t(share: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution at the probability `share`, for `freedom` degrees of freedom.

    The Cornish-Fisher expansion is accurate to 0.2 % at 97.5 % for 5 or more degrees of freedom.
    """
    z = _NORMAL.inv_cdf(share)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return float(sum(term / freedom**power for power, term in enumerate(terms)))


def percentile_tails(num_problems: int) -> tuple[float, float]:
    """Return the tail probabilities at which the percentile interval is as wide as Student's t interval."""
    width = math.sqrt(num_problems / (num_problems - 1)) * student_t((1 + LEVEL) / 2, num_problems - 1)
    tail = _NORMAL.cdf(-width)
    return tail, 1 - tail


def _agreed(value: float, num_problems: int, bounds: tuple[float, float] | None) -> tuple[float | None, float | None]:
    """Return the interval of the mean if all P problems have the same value; (None, None) if there are no bounds.

    The worst case is that a fraction u of all problems has one of the bounds as its value, and that none of these is
    among the P problems. The probability of this is (1 - u)^P. The ends of the interval are the means for the u at
    which it is 2.5 %, one end for each bound.
    """
    if bounds is None:
        return None, None
    share = 1 - ((1 - LEVEL) / 2) ** (1 / num_problems)
    least, most = bounds
    return value - share * (value - least), value + share * (most - value)


def pass_at_k(num_samples_P: Iterable[int], num_correct_P: Iterable[int], k: int) -> Floats:
    """Return pass@k of each problem: the probability that k of its responses, drawn at random, include a correct one.

    For a problem with n responses, of which c are correct, it is

        1 - C(n - c, k) / C(n, k)  =  1 - prod over i = n-c+1 ... n of (1 - k / i)

    The product never overflows. The result is exactly 0 if c = 0, exactly 1 if fewer than k responses are wrong, and
    c / n for k = 1. It is NaN for a problem with fewer than k responses. (Chen et al. 2021, arXiv:2107.03374)
    """
    n_P, c_P = np.asarray(num_samples_P, dtype=np.int64), np.asarray(num_correct_P, dtype=np.int64)
    if k < 1 or (c_P < 0).any() or (c_P > n_P).any():
        raise InputError(
            f"k={k} is not possible with {c_P.tolist()!s:.60} correct of {n_P.tolist()!s:.60} responses",
            where="pass@k",
            fix="use k of at least 1, and at most as many correct responses as responses",
        )
    factor = 1 - k / np.arange(1, n_P.max(initial=0) + 1)
    values = [1 - np.prod(factor[n - c : n]) if n - c >= k else 1.0 for n, c in zip(n_P, c_P, strict=True)]
    return np.where(n_P >= k, np.array(values, dtype=np.float64), np.nan)


def require_ks(ks: Iterable[int], n: int) -> tuple[int, ...]:
    """Return the values of k sorted, each once.

    Raise InputError if one is less than 1 or greater than n, the number of responses per problem.
    """
    wanted = tuple(sorted(set(ks)))
    impossible = [k for k in wanted if not 1 <= k <= n]
    if impossible:
        possible = "k can only be 1" if n == 1 else f"k can be 1 to {n}"
        more = f"{possible}; for a larger k, sample more responses with --n {max(impossible)}"
        fix = more if max(impossible) > n else possible
        what = f"pass@{impossible[0]} cannot be computed from {n} response{'s' * (n > 1)} per problem"
        raise InputError(what, where="--k", fix=fix)
    return wanted


def default_ks(n: int) -> tuple[int, ...]:
    """Return the default values of k for pass@k: the powers of two up to n."""
    return tuple(2**power for power in range(n.bit_length()))
