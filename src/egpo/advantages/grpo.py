"""GRPO (Shao et al. 2024, arXiv:2402.03300): the reward compared with the group of responses to the same problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from egpo.advantages.signals import Groups, Metrics, Signals
from egpo.errors import warn_once
from egpo.sections import Section

if TYPE_CHECKING:
    import torch
    from torch import Tensor

EPS = 1e-6  # as in verl; TRL uses 1e-4


class GrpoSettings(Section):
    """`grpo` has no settings of its own; `algorithm.normalize` applies to every estimator."""


def grpo(signals: Signals, *, normalize: bool = True, metrics: Metrics | None = None) -> Tensor:
    """Return the reward minus its group's mean, in units of the group's standard deviation.

        A[i] = (r[i] - mean_g) / (std_g + 1e-6)        std_g: the sample estimate (G - 1)
        A[i] = r[i] - mean_g                           normalize=False

    A group whose rewards are all equal gives exactly 0. A group of one row: A = r, as in verl.
    """
    standing = compare_within_groups(signals, metrics)
    return standing.advantages(standing.centred_B, normalize)


@dataclass(frozen=True)
class Standing:
    """The rewards of a batch and of its groups, in float64.

    `centred_B`: the reward minus the mean of its group. `std_P`: the sample estimate. `constant_P`, `alone_P`: masks of
    the groups whose rewards are all equal, and of those with one row.
    """

    groups: Groups
    reward_B: Tensor
    centred_B: Tensor
    std_P: Tensor
    constant_P: Tensor
    alone_P: Tensor
    dtype: torch.dtype

    def advantages(self, value_B: Tensor, normalize: bool, scale_P: Tensor | None = None) -> Tensor:
        """Return values as advantages, in the dtype of the rewards.

        `normalize`: divide them by `scale_P` + 1e-6, by default the standard deviation. A group whose rewards are all
        equal gets exactly 0, and a group of one row its reward.
        """
        scale_P = self.std_P if scale_P is None else scale_P
        if normalize:
            value_B = value_B / self.groups.rows((scale_P + EPS).masked_fill(self.alone_P, 1.0))
        value_B = value_B.masked_fill(self.groups.rows(self.constant_P), 0.0)
        return value_B.where(~self.groups.rows(self.alone_P), self.reward_B).to(self.dtype)


def compare_within_groups(signals: Signals, metrics: Metrics | None = None) -> Standing:
    """Compare the rewards with their groups. Warn of groups with one row, and report the fraction of constant ones."""
    # float64: in float32 the mean of sixteen rewards of 0.9 is not 0.9, and 0 / 1e-6 becomes -0.056.
    reward_B = signals.reward_B.double()
    groups = Groups.of(signals.group_B)
    alone_P = groups.size_P == 1
    constant_P = groups.equal(reward_B, signals.reward_B.dtype) & ~alone_P
    _warn_of_groups_of_one(alone_P)
    if metrics is not None and len(constant_P):
        metrics["groups/zero_variance_frac"] = float(constant_P.double().mean())

    mean_P = (groups.sum(reward_B) / groups.size_P).masked_fill(alone_P, 0.0)
    centred_B = (reward_B - groups.rows(mean_P)).masked_fill(groups.rows(constant_P), 0.0)
    std_P = (groups.sum(centred_B.square()) / (groups.size_P - 1).clamp(min=1)).sqrt()
    return Standing(groups, reward_B, centred_B, std_P, constant_P, alone_P, signals.reward_B.dtype)


def _warn_of_groups_of_one(alone_P: Tensor) -> None:
    num_alone = int(alone_P.sum())
    if num_alone:
        warn_once(
            "groups of one",
            f"{num_alone} of {len(alone_P)} groups have one response: their advantage is their reward; "
            "sample at least two responses per problem",
        )
