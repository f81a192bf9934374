"""Prompts differ in difficulty: their shares as Beta(a, b), fitted by greatest likelihood. R resamples, P problems."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_MOST_STEPS = 100
_LONGEST_STEP = 1.0
_LEAST, _MOST = 1e-6, 1e6
"""Bounds of a and b. Beyond them all prompts are alike, or each is all or nothing: to a forecast it is the same."""


@dataclass(frozen=True, eq=False)
class BetaFits:
    """One Beta(a, b) for each resample."""

    a_R: Floats
    b_R: Floats

    def stays_R(self, have: int, want: int) -> Floats:
        """The chance that a prompt with `have` hits in `have` tries has only hits in `want`:

        E[p^want] / E[p^have]  =  prod over j = have ... want - 1 of (a + j) / (a + b + j)
        """
        tries = np.arange(have, want)
        share: Floats = np.prod((self.a_R[:, None] + tries) / ((self.a_R + self.b_R)[:, None] + tries), axis=1)
        return share


def fit_beta(tries_P: ArrayLike, hits_P: ArrayLike, weight_RP: Floats) -> BetaFits:
    """The fit to `hits` of `tries` of each problem, once for each row of weights.

        log L = sum over i of  N1[i] log(a + i) + N0[i] log(b + i) - N[i] log(a + b + i)

    N1[i], N0[i] and N[i] weigh the problems with more than i hits, misses, tries: all that the counts say. Newton's
    method in log a and log b; where the likelihood curves the wrong way, Minka's fixed point, which always climbs.
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
    # Without a hit, or without a miss, the likelihood grows up to the very end.
    return BetaFits(np.where(hit.any(1), a, 0.0), np.where(missed.any(1), b, 0.0))


def _climbed(a: Floats, b: Floats, hit: Floats, missed: Floats, tried: Floats, *, order: ArrayLike) -> list[Floats]:
    """One step up."""
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
