"""How likely do all G responses of a group earn the same reward? Then the group teaches nothing. P prompts, R
resamples."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from egpo.evals.passk import pass_at_k
from egpo.probes.beta_binomial import BetaFits, Floats, fit_beta

Prompts = Sequence[Counter[float]]
"""For each prompt, how many of its responses earned each reward."""


def agreement_within(prompts: Prompts, size: int) -> Floats:
    """For each prompt the share of its subsets of `size` responses that agree, which has no bias:

        sum over rewards v of C(m[v], G) / C(n, G)

    where m[v] of its n responses earned v; 0 for a prompt with fewer responses than G.
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
    """The mean over prompts, for groups of any size, once for each row of `weight_RP`.

    A prompt with G responses or more counts by its subsets. One with n < G that disagree will disagree. One whose n
    responses all earned v stays so with the probability that Beta(a, b), fitted to every prompt's share of v, gives it.
    """

    prompts: Prompts
    weight_RP: Floats
    fits: dict[float, BetaFits]

    @classmethod
    def fitted(cls, prompts: Prompts, weight_RP: Floats) -> "Agreement":
        n_P = [counts.total() for counts in prompts]
        unanimous = sorted({value for counts in prompts for value in _unanimous(counts)})
        fits = {value: fit_beta(n_P, [counts[value] for counts in prompts], weight_RP) for value in unanimous}
        return cls(prompts, weight_RP, fits)

    def mean_R(self, size: int) -> Floats:
        """For groups of `size`."""
        total_R = self.weight_RP @ agreement_within(self.prompts, size)
        for value, fits in self.fits.items():
            n_P = np.array([counts.total() if _unanimous(counts) == [value] else size for counts in self.prompts])
            for n in np.unique(n_P[n_P < size]):
                total_R += self.weight_RP[:, n_P == n].sum(1) * fits.stays_R(int(n), size)
        mean: Floats = total_R / self.weight_RP.sum(1)
        return mean


def _unanimous(counts: Counter[float]) -> list[float]:
    """The one reward that every response earned, if there is one."""
    return list(counts) if len(counts) == 1 else []
