"""RLOO (Kool et al. 2019; Ahmadian et al. 2024, arXiv:2402.14740): the reward compared with the other responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from egpo.advantages.grpo import compare_within_groups
from egpo.advantages.signals import Metrics, Signals
from egpo.sections import Section

if TYPE_CHECKING:
    from torch import Tensor


class RlooSettings(Section):
    """`rloo` has no settings, and is never divided by the standard deviation: `algorithm.normalize` has no effect."""


def rloo(signals: Signals, *, normalize: bool = True, metrics: Metrics | None = None) -> Tensor:
    """Return the reward minus the mean reward of the other responses of its group.

        A[i] = r[i] - sum_{j != i} r[j] / (G - 1)  =  (r[i] - mean_g) * G / (G - 1)

    `normalize` has no effect: RLOO keeps the scale of the rewards. A group whose rewards are all equal gives exactly 0.
    A group of one row: A = r, as in verl.
    """
    standing = compare_within_groups(signals, metrics)
    size_P = standing.groups.size_P
    factor_P = size_P / (size_P - 1).clamp(min=1).double()
    return standing.advantages(standing.centred_B * standing.groups.rows(factor_P), normalize=False)
