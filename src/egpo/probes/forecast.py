"""The forecast share of groups that will have a gradient, for groups of 2 to 64 responses. P prompts, R resamples.

A group is informative if its rewards differ. For rewards of 0 and 1 this means that its responses are neither all
correct nor all wrong. With a shaped reward, rewards may differ although all responses are wrong.

Up to the number of sampled responses per prompt, the share is counted over subsets of the responses. For larger groups,
a Beta(a, b) distribution, fitted over prompts by maximum likelihood, gives the probability that a prompt whose
responses all have the same reward gets this reward again.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import hypot, sqrt
from statistics import variance

import numpy as np
from numpy.typing import ArrayLike, NDArray

from egpo.evals.intervals import SHARES, Estimate, mean_with_interval, mid_quantiles, pass_at_k, percentile_tails
from egpo.evals.responses import SampleRecord

Rewards = Mapping[str, Counter[float]]
"""For the key of each prompt: how many of its responses have each reward."""


def count_rewards(samples: Iterable[SampleRecord]) -> dict[str, Counter[float]]:
    """Count the rewards of each prompt, over responses that were judged and have a finite score.

    Rewards are rounded to float32, as in training, before they are compared. Prompts without rewards are left out.
    """
    counts: dict[str, Counter[float]] = {}
    for sample in samples:
        if not sample.failed and math.isfinite(sample.score):
            counts.setdefault(sample.problem, Counter())[float(np.float32(sample.score))] += 1
    return counts


def reward_variances(rewards: Rewards) -> dict[str, float]:
    """Return the variance of each prompt's rewards, divided by n - 1; NaN for a prompt with a single response.

    For rewards of 0 and 1, the expected variance is p (1 - p) for any n.
    """
    return {key: variance(counts.elements()) if counts.total() > 1 else math.nan for key, counts in rewards.items()}


Floats = NDArray[np.float64]

_MOST_STEPS = 100
_LONGEST_STEP = 1.0
_LEAST, _MOST = 1e-6, 1e6
"""Bounds of a and b. Larger or smaller values would not change the forecast: with large ones all prompts have the same
probability, with small ones each prompt has probability 0 or 1."""


@dataclass(frozen=True, eq=False)
class BetaFits:
    """The parameters of one distribution Beta(a, b) for each resample of the prompts."""

    a_R: Floats
    b_R: Floats

    def stays_R(self, have: int, want: int) -> Floats:
        """Return the probability that all of `want` responses are hits (see `fit_beta`), if the first `have` are:

        E[p^want] / E[p^have]  =  prod over j = have ... want - 1 of (a + j) / (a + b + j)
        """
        tries = np.arange(have, want)
        share: Floats = np.prod((self.a_R[:, None] + tries) / ((self.a_R + self.b_R)[:, None] + tries), axis=1)
        return share


def fit_beta(tries_P: ArrayLike, hits_P: ArrayLike, weight_RP: Floats) -> BetaFits:
    """Fit Beta(a, b) to the number of hits of each prompt, once for each row of weights.

    A try is a response to the prompt; it is a hit if it has the reward in question, else a miss.

        log L = sum over i of  N1[i] log(a + i) + N0[i] log(b + i) - N[i] log(a + b + i)

    N1[i], N0[i] and N[i] are the total weights of the prompts with more than i hits, misses and tries. The maximum is
    found by Newton's method in log a and log b; where the likelihood is not concave, by Minka's fixed-point iteration,
    which always increases it.
    """
    tries, hits = np.asarray(tries_P), np.asarray(hits_P)
    order = np.arange(max(1, int(tries.max(initial=1))))
    more_than = [weight_RP @ (count[:, None] > order).astype(np.float64) for count in (hits, tries - hits, tries)]
    a = b = np.ones(len(weight_RP))
    for _ in range(_MOST_STEPS):
        before = a, b
        a, b = _climbed(a, b, *more_than, order=order)
        if np.allclose((a, b), before, rtol=1e-9, atol=0):
            break
    hit, missed, _ = more_than
    # Without any hit, or any miss, the likelihood has its maximum at the boundary: a = 0, or b = 0.
    return BetaFits(np.where(hit.any(1), a, 0.0), np.where(missed.any(1), b, 0.0))


def _climbed(a: Floats, b: Floats, hit: Floats, missed: Floats, tried: Floats, *, order: ArrayLike) -> list[Floats]:
    """Return a and b after one step that increases the likelihood."""
    places = np.asarray(order)
    (hit_1, hit_2), (missed_1, missed_2), (tried_1, tried_2) = (
        ((weight / (at[:, None] + places)).sum(1), (weight / (at[:, None] + places) ** 2).sum(1))
        for weight, at in ((hit, a), (missed, b), (tried, a + b))
    )
    slope_a, slope_b = a * (hit_1 - tried_1), b * (missed_1 - tried_1)
    curve_aa, curve_bb = slope_a + a * a * (tried_2 - hit_2), slope_b + b * b * (tried_2 - missed_2)
    curve_ab = a * b * tried_2
    determinant = curve_aa * curve_bb - curve_ab**2
    concave = (curve_aa < 0) & (determinant > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        newton = (
            (curve_ab * slope_b - curve_bb * slope_a) / determinant,
            (curve_ab * slope_a - curve_aa * slope_b) / determinant,
        )
        minka = np.log(hit_1 / tried_1), np.log(missed_1 / tried_1)
    steps = [np.where(concave, *pair) for pair in zip(newton, minka, strict=True)]
    return [
        np.clip(at * np.exp(np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)), _LEAST, _MOST)
        for at, step in zip((a, b), steps, strict=True)
    ]


Prompts = Sequence[Counter[float]]
"""For each prompt: how many of its responses have each reward."""


def agreement_within(prompts: Prompts, size: int) -> Floats:
    """Estimate for each prompt the probability that all responses of a group of `size` get the same reward.

    The estimate is unbiased: the share of all subsets of G = `size` responses whose rewards are equal,

        sum over rewards v of C(m[v], G) / C(n, G)

    where m[v] of the prompt's n responses have the reward v. It is 0 for a prompt with fewer than G responses.
    """
    return np.array([_share_of_subsets(tuple(sorted(counts.values())), size) for counts in prompts], dtype=np.float64)


@lru_cache(maxsize=4096)
def _share_of_subsets(counts: tuple[int, ...], size: int) -> float:
    n = sum(counts)
    large = [count for count in counts if count >= size]
    # C(m, G) / C(n, G) is the share of subsets without any of the n - m others.
    return float(np.sum(1 - pass_at_k([n] * len(large), [n - count for count in large], size)))


@dataclass(frozen=True, eq=False)
class Agreement:
    """The probability that all rewards of a group of G responses are equal, as a mean over prompts.

    It is computed once for each row of `weight_RP`. For a prompt with at least G responses, it is counted over subsets.
    For a prompt with fewer responses whose rewards differ, it is 0. If all n < G responses have the reward v, the
    probability that further ones have it too comes from Beta(a, b), fitted to the share of v of every prompt.
    """

    prompts: Prompts
    weight_RP: Floats
    fits: dict[float, BetaFits]

    @classmethod
    def fitted(cls, prompts: Prompts, weight_RP: Floats) -> "Agreement":
        """Fit a Beta distribution to the prompts' probabilities of a reward value.

        This is done for each value that at least one prompt got for all its responses.
        """
        n_P = [counts.total() for counts in prompts]
        unanimous = sorted({value for counts in prompts for value in _unanimous(counts)})
        fits = {value: fit_beta(n_P, [counts[value] for counts in prompts], weight_RP) for value in unanimous}
        return cls(prompts, weight_RP, fits)

    def mean_R(self, size: int) -> Floats:
        """Return the mean probability that all rewards of a group of `size` are equal, for each row of weights."""
        total_R = self.weight_RP @ agreement_within(self.prompts, size)
        for value, fits in self.fits.items():
            n_P = np.array([counts.total() if _unanimous(counts) == [value] else size for counts in self.prompts])
            for n in np.unique(n_P[n_P < size]):
                total_R += self.weight_RP[:, n_P == n].sum(1) * fits.stays_R(int(n), size)
        mean: Floats = total_R / self.weight_RP.sum(1)
        return mean


def _unanimous(counts: Counter[float]) -> list[float]:
    """Return the reward that all responses of a prompt have, as a list of one; an empty list if rewards differ."""
    return list(counts) if len(counts) == 1 else []


GROUP_SIZES = (2, 4, 8, 16, 32, 64)
NUM_REFITS = 2_000
_NORMAL_95 = 1.96


@dataclass(frozen=True)
class Forecast:
    """The forecast share of groups of `group_size` whose rewards differ. It is extrapolated if a prompt has fewer
    responses."""

    group_size: int
    informative: Estimate
    extrapolated: bool

    def seen_in(self, num_groups: int) -> tuple[float, float]:
        """Return the 95 % range of the share of informative groups among `num_groups` groups of different prompts.

        The squares of two errors are added: that of the forecast, and the sampling error of the groups.
        """
        share = self.informative
        low, high = (share.value if end is None else end for end in (share.low, share.high))
        # The sampling error is taken at the ends of the interval: at a value of 0 or 1 it would be 0.
        below, above = (_NORMAL_95 * sqrt(end * (1 - end) / num_groups) for end in (low, high))
        return max(0.0, share.value - hypot(share.value - low, below)), min(
            1.0, share.value + hypot(high - share.value, above)
        )


def forecast(
    rewards: Rewards, sizes: Iterable[int] = GROUP_SIZES, seed: int = 0, num_refits: int = NUM_REFITS
) -> tuple[Forecast, ...]:
    """Forecast the share of informative groups for each group size, with 95 % intervals over prompts.

    The simple formula, the mean of 1 - p^G - (1 - p)^G with p = correct / n, is too low: see docs/probing.md. Without
    prompts the result is empty.
    """
    prompts, sizes = tuple(rewards.values()), sorted(sizes)
    if not prompts:
        return ()
    least = min(counts.total() for counts in prompts)
    within = [_within(prompts, size, seed) for size in sizes if size <= least]
    beyond = [size for size in sizes if size > least]
    if not beyond:
        return tuple(within)
    agreement = Agreement.fitted(prompts, _weights(len(prompts), seed, num_refits))
    return (*within, *(_beyond(prompts, size, agreement, seed) for size in beyond))


def _within(prompts: Prompts, size: int, seed: int) -> Forecast:
    estimate = mean_with_interval(1 - agreement_within(prompts, size), seed=seed, bounds=SHARES)
    assert estimate is not None
    return Forecast(size, estimate, extrapolated=False)


def _beyond(prompts: Prompts, size: int, agreement: Agreement, seed: int) -> Forecast:
    """Forecast the share of groups whose rewards differ, for groups larger than the number of sampled responses.

    The fitted Beta distributions cannot distinguish a prompt that is never solved from one that is solved once in a
    hundred tries. So the interval covers two intervals: that of the distributions fitted to bootstrap samples, and that
    of the share under the assumption that prompts whose rewards were all equal never give another reward.
    """
    value, *refitted = map(float, 1 - agreement.mean_R(size))
    known = mean_with_interval(
        [1 - float(agreement_within([counts], min(size, counts.total()))[0]) for counts in prompts],
        seed=seed,
        bounds=SHARES,
    )
    assert known is not None
    ends = [value, known.low, known.high]
    if len(prompts) > 1:
        ends += mid_quantiles(np.array(refitted), percentile_tails(len(prompts)))
    held = [end for end in ends if end is not None]
    return Forecast(size, Estimate(value, min(held), max(held), len(prompts)), extrapolated=True)


def _weights(num_prompts: int, seed: int, num_refits: int) -> Floats:
    """Return bootstrap weights: 1 for every prompt in the first row; in the others, how often each prompt was drawn."""
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(num_prompts, np.full(num_prompts, 1 / num_prompts), size=num_refits)
    return np.vstack([np.ones(num_prompts), drawn])
