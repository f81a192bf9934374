"""Quantile advantage estimation (Wu et al. 2025, arXiv:2509.22611): a quantile of the group in place of its mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from egpo.advantages.grpo import compare_within_groups
from egpo.advantages.signals import Metrics, Signals
from egpo.sections import Section, checked

if TYPE_CHECKING:
    from torch import Tensor

ROUNDING = 1e-9
"""Subtracted from K * G before it is rounded up: 0.7 * 10 is 7.000000000000001."""


class QaeSettings(Section):
    """The settings of `qae`."""

    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.4
    """K, the quantile of the group's rewards that is the baseline. With rewards 0 and 1 and the fraction p of right
    responses, the baseline is 0 where p <= 1 - K, and 1 where p > 1 - K."""


def qae(signals: Signals, *, quantile: float = 0.4, normalize: bool = True, metrics: Metrics | None = None) -> Tensor:
    """Return the reward minus the K-quantile of its group's rewards, in units of the group's standard deviation.

        A[i] = (r[i] - Q_K(r)) / (std_g + 1e-6)        Q_K: the smallest reward x with #(r <= x) >= K * G
        A[i] = r[i] - Q_K(r)                           normalize=False

    Rows at the quantile get exactly 0. A group whose rewards are all equal gives exactly 0. A group of one row: A = r,
    as under `grpo`.
    """
    checked(QaeSettings, "estimator `qae`", quantile=quantile)
    standing = compare_within_groups(signals, metrics)
    groups, reward_B = standing.groups, standing.reward_B
    place_P = ((quantile * groups.size_P.double() - ROUNDING).ceil().long() - 1).clamp(min=0)
    baseline_P = reward_B[groups.sorted(reward_B)][groups.first_P() + place_P]
    advantage_B = standing.advantages(reward_B - groups.rows(baseline_P), normalize)
    if metrics is not None and len(advantage_B):
        metrics["egpo/at_baseline_frac"] = float((advantage_B == 0).double().mean())
    return advantage_B
