"""95 % intervals of means over problems, by a bootstrap over problems; and the unbiased pass@k. P problems.

Responses to one problem are not independent, so problems are the unit that is resampled: each contributes the mean of
its responses. Only how often each value occurs matters, so the draws are multinomial.
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
"""Bounds of a value that is a fraction."""

Floats = NDArray[np.float64]
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Estimate:
    """A mean over `num_problems` problems with its 95 % interval; `low` and `high` are None if it is unknown."""

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
    """Return the mean of one value per problem, with its interval. NaN is ignored; None if no value is left.

    The interval is the bootstrap's percentile interval, expanded to the width of Student's t (Hesterberg 2015), and
    read off the mid-distribution: means of fractions lie on a lattice, where a plain quantile would jump from point to
    point. Its coverage is better than that of percentile and BCa intervals (docs/evaluation.md). If all values are
    equal, resampling gives no interval: see `_agreed`.
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
    """Return means of P values drawn with replacement, by drawing how often each distinct value occurs."""
    distinct, counts = np.unique(value_P, return_counts=True)
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(value_P.size, counts / value_P.size, size=num_resamples)
    means: Floats = drawn @ distinct / value_P.size
    return means


def mid_quantiles(means: Floats, shares: tuple[float, float]) -> tuple[float, float]:
    """Return where P(X < x) + P(X = x) / 2, interpolated between the values that occur, reaches each share."""
    # Equal sums in another order differ in their last bits.
    distinct, counts = np.unique(means.round(12), return_counts=True)
    below = (np.cumsum(counts) - counts / 2) / means.size
    low, high = np.interp(shares, below, distinct)
    return float(low), float(high)


def student_t(share: float, freedom: int) -> float:
    """Return a quantile of Student's t by the Cornish-Fisher expansion.

    At 97.5 % it is within 0.2 % of the exact quantile from 5 degrees of freedom on.
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
    """Return the interval if all problems have the same value; (None, None) without bounds.

    A fraction u of unseen problems may still differ by as much as the bounds allow, where (1 - u)^P = 2.5 %.
    """
    if bounds is None:
        return None, None
    share = 1 - ((1 - LEVEL) / 2) ** (1 / num_problems)
    least, most = bounds
    return value - share * (value - least), value + share * (most - value)


def pass_at_k(num_samples_P: Iterable[int], num_correct_P: Iterable[int], k: int) -> Floats:
    """Return, for each problem with n responses of which c are correct, the fraction of k-subsets with a correct one:

        1 - C(n - c, k) / C(n, k)  =  1 - prod over i = n-c+1 ... n of (1 - k / i)

    The product never overflows and is exact at its ends: 0 if c = 0, 1 if fewer than k are wrong. At k = 1 it is c / n.
    NaN for a problem with fewer than k responses. (Chen et al. 2021, arXiv:2107.03374)
    """
    n_P, c_P = np.asarray(num_samples_P, dtype=np.int64), np.asarray(num_correct_P, dtype=np.int64)
    if k < 1 or (c_P < 0).any() or (c_P > n_P).any():
        raise InputError(f"k={k}, right responses {c_P.tolist()!s:.60} of {n_P.tolist()!s:.60}", where="pass@k")
    factor = 1 - k / np.arange(1, n_P.max(initial=0) + 1)
    values = [1 - np.prod(factor[n - c : n]) if n - c >= k else 1.0 for n, c in zip(n_P, c_P, strict=True)]
    return np.where(n_P >= k, np.array(values, dtype=np.float64), np.nan)


def require_ks(ks: Iterable[int], n: int) -> tuple[int, ...]:
    """Return each k once, in order. InputError if n responses per problem are too few for one of them."""
    wanted = tuple(sorted(set(ks)))
    impossible = [k for k in wanted if not 1 <= k <= n]
    if impossible:
        possible = "k can only be 1" if n == 1 else f"k can be 1 to {n}"
        fix = f"{possible}; for more, sample more: --n {max(impossible)}" if max(impossible) > n else possible
        what = f"pass@{impossible[0]} out of {n} response{'s' * (n > 1)} per problem"
        raise InputError(what, where="--k", fix=fix)
    return wanted


def default_ks(n: int) -> tuple[int, ...]:
    """Return the powers of two up to n."""
    return tuple(2**power for power in range(n.bit_length()))
