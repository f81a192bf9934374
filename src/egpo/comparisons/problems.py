"""One training run on each side: the difference, problem by problem. P problems.

Responses to one problem resemble each other, so problems are what is drawn: McNemar's test where each is simply right
or wrong, else a cluster bootstrap.
"""

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from egpo.comparisons.mcnemar import Discordance, mid_p
from egpo.comparisons.outcome import Outcome, TDesign
from egpo.comparisons.students_t import two_sided_p
from egpo.evals.bootstrap import NUM_RESAMPLES, SHARES, Estimate, mean_with_interval, resampled_means

Floats = NDArray[np.float64]
Bounds = tuple[float, float] | None
MCNEMAR, BOOTSTRAP = "McNemar, mid-p", "cluster bootstrap over problems"


def compare_over_problems(
    base_P: Floats,
    other_P: Floats,
    *,
    bounds: Bounds = None,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> Outcome:
    """Of one value a problem and side, two problems at least. `bounds` are the values' own, or the least and the
    greatest seen."""
    difference_P = (other_P - base_P).round(12)  # equal differences of other values differ in their last bits
    low, high = bounds or (float(min(base_P.min(), other_P.min())), float(max(base_P.max(), other_P.max())))
    limits = (low - high, high - low) if low < high else None
    delta = mean_with_interval(difference_P, seed=seed, bounds=limits, num_resamples=num_resamples)
    assert delta is not None
    base = float(base_P.mean())
    size = difference_P.size
    if np.isin([base_P, other_P], SHARES).all():
        lost, won = int((difference_P < 0).sum()), int((difference_P > 0).sum())
        return Outcome(base, delta, mid_p(lost, won), MCNEMAR, Discordance((lost + won) / size, size))
    p_value = _p_by_resampling(difference_P, delta, limits, seed, num_resamples)
    design = TDesign(float(difference_P.std(ddof=1)) / math.sqrt(size), size - 1)
    return Outcome(base, delta, p_value, BOOTSTRAP, design)


def _p_by_resampling(difference_P: Floats, delta: Estimate, limits: Bounds, seed: int, num_resamples: int) -> float:
    """The level at which the interval of `mean_with_interval` would just touch 0: one minus its coverage there.

    With 10,000 resamples nothing under about 0.0001 can be told, with under ten problems nothing under about 0.01.
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
    """Every problem has the same difference: the share u of others that would bring the mean to 0 was never met, which
    has the chance (1 - u)^P on each side."""
    if delta.value == 0 or limits is None:
        return 1.0
    opposite = limits[0] if delta.value > 0 else limits[1]
    share = delta.value / (delta.value - opposite)
    return min(1.0, 2 * (1 - share) ** delta.num_problems)
