"""95 % intervals for means over problems, by resampling problems. P problems.

Problems are the clusters: responses to one problem are not independent, so they are drawn together, as the mean that
they have. What is then resampled is one value a problem, and only how often each value occurs matters.

pass@k without bias: the chance that one at least of k responses is right, judged by n >= k of them. P problems.
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
"""The bounds of a value that is a share."""

Floats = NDArray[np.float64]
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Estimate:
    """A mean over `num_problems` problems and its 95 % interval; the ends are None where nothing can be said."""

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
    """The mean of one value a problem. NaN is no value; None where there is none at all.

    The interval is the bootstrap's percentile interval, expanded to the width of Student's t (Hesterberg 2015), and
    read off the mid-distribution: means of shares lie on a lattice, and a plain quantile would jump from point to
    point. Chosen for its coverage over percentile and BCa (docs/evaluation.md). Where all problems agree resampling
    says nothing: see `_agreed`.
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
    """Means of as many problems, drawn with replacement: by how often each distinct value is drawn."""
    distinct, counts = np.unique(value_P, return_counts=True)
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(value_P.size, counts / value_P.size, size=num_resamples)
    means: Floats = drawn @ distinct / value_P.size
    return means


def mid_quantiles(means: Floats, shares: tuple[float, float]) -> tuple[float, float]:
    """Where P(X < x) + P(X = x) / 2, drawn as a line between the values that occur, passes each share."""
    # Equal sums in another order differ in their last bits.
    distinct, counts = np.unique(means.round(12), return_counts=True)
    below = (np.cumsum(counts) - counts / 2) / means.size
    low, high = np.interp(shares, below, distinct)
    return float(low), float(high)


def student_t(share: float, freedom: int) -> float:
    """Quantile of Student's t, by the Cornish-Fisher expansion: to 0.2 % from 5 degrees of freedom on."""
    z = _NORMAL.inv_cdf(share)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return float(sum(term / freedom**power for power, term in enumerate(terms)))


def percentile_tails(num_problems: int) -> tuple[float, float]:
    """The shares at which the percentile interval has the width that Student's t and an unbiased variance give."""
    width = math.sqrt(num_problems / (num_problems - 1)) * student_t((1 + LEVEL) / 2, num_problems - 1)
    tail = _NORMAL.cdf(-width)
    return tail, 1 - tail


def _agreed(value: float, num_problems: int, bounds: tuple[float, float] | None) -> tuple[float | None, float | None]:
    """Where every problem has one value: no certainty, only few exceptions. A share u of problems may differ,
    (1 - u)^P = 2.5 %, by as much as the bounds allow. Without bounds nothing can be said."""
    if bounds is None:
        return None, None
    share = 1 - ((1 - LEVEL) / 2) ** (1 / num_problems)
    least, most = bounds
    return value - share * (value - least), value + share * (most - value)


def pass_at_k(num_samples_P: Iterable[int], num_correct_P: Iterable[int], k: int) -> Floats:
    """For each problem with n responses, c of them right, the share of its subsets of k that hold a right one:

        1 - C(n - c, k) / C(n, k)  =  1 - prod over i = n-c+1 ... n of (1 - k / i)

    The product never overflows, and is exact at its ends: 0 where c = 0, 1 where fewer than k are wrong. At k = 1 it is
    c / n. NaN for a problem with fewer than k responses. (Chen et al. 2021, arXiv:2107.03374)
    """
    n_P, c_P = np.asarray(num_samples_P, dtype=np.int64), np.asarray(num_correct_P, dtype=np.int64)
    if k < 1 or (c_P < 0).any() or (c_P > n_P).any():
        raise InputError(f"k={k}, right responses {c_P.tolist()!s:.60} of {n_P.tolist()!s:.60}", where="pass@k")
    factor = 1 - k / np.arange(1, n_P.max(initial=0) + 1)
    values = [1 - np.prod(factor[n - c : n]) if n - c >= k else 1.0 for n, c in zip(n_P, c_P, strict=True)]
    return np.where(n_P >= k, np.array(values, dtype=np.float64), np.nan)


def require_ks(ks: Iterable[int], n: int) -> tuple[int, ...]:
    """Those k, in order and once each; an InputError where n responses cannot tell."""
    wanted = tuple(sorted(set(ks)))
    impossible = [k for k in wanted if not 1 <= k <= n]
    if impossible:
        possible = "k can only be 1" if n == 1 else f"k can be 1 to {n}"
        fix = f"{possible}; for more, sample more: --n {max(impossible)}" if max(impossible) > n else possible
        raise InputError(f"pass@{impossible[0]} out of {n} response{'s' * (n > 1)} a problem", where="--k", fix=fix)
    return wanted


def default_ks(n: int) -> tuple[int, ...]:
    """The powers of two up to n."""
    return tuple(2**power for power in range(n.bit_length()))
