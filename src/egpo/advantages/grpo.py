"""GRPO (Shao et al. 2024, arXiv:2402.03300): the reward compared with the group of responses to the same problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from egpo.advantages.signals import Groups, Metrics, Signals
from egpo.errors import warn_once
from egpo.sections import Section

if TYPE_CHECKING:
    from torch import Tensor

EPS = 1e-6  # as in verl; TRL uses 1e-4
SAME_ROUNDINGS = 8
"""Rewards that differ by at most this many rounding errors count as equal, such as one sum in two orders."""


class GrpoSettings(Section):
    """`grpo` has no settings of its own; `algorithm.normalize` applies to every estimator."""


def grpo(signals: Signals, *, normalize: bool = True, metrics: Metrics | None = None) -> Tensor:
    """Return the reward minus its group's mean, in units of the group's standard deviation.

        A[i] = (r[i] - mean_g) / (std_g + 1e-6)        std_g: the sample estimate (G - 1)
        A[i] = r[i] - mean_g                           normalize=False

    A group whose rewards are all equal gives exactly 0. A group of one row: A = r, as in verl.
    """
    standing = _compare_within_groups(signals)
    _warn_of_groups_of_one(standing.alone_P)
    if metrics is not None and len(standing.constant_P):
        metrics["groups/zero_variance_frac"] = float(standing.constant_P.double().mean())
    return (standing.normalized_B if normalize else standing.centred_B).to(signals.reward_B.dtype)


@dataclass(frozen=True)
class _Standing:
    """The rewards relative to their groups (float64), and masks of groups with equal rewards or a single row."""

    centred_B: Tensor
    normalized_B: Tensor
    constant_P: Tensor
    alone_P: Tensor


def _compare_within_groups(signals: Signals) -> _Standing:
    import torch

    # float64: in float32 the mean of sixteen rewards of 0.9 is not 0.9, and 0 / 1e-6 becomes -0.056.
    reward_B = signals.reward_B.double()
    groups = Groups.of(signals.group_B)
    alone_P = groups.size_P == 1
    highest_P, lowest_P = groups.max(reward_B), groups.min(reward_B)
    largest_P = torch.maximum(highest_P.abs(), lowest_P.abs())
    same_P = SAME_ROUNDINGS * torch.finfo(signals.reward_B.dtype).eps * largest_P.clamp(min=1.0)
    constant_P = (highest_P - lowest_P <= same_P) & ~alone_P

    mean_P = (groups.sum(reward_B) / groups.size_P).masked_fill(alone_P, 0.0)
    centred_B = (reward_B - groups.rows(mean_P)).masked_fill(groups.rows(constant_P), 0.0)
    std_P = (groups.sum(centred_B.square()) / (groups.size_P - 1).clamp(min=1)).sqrt()
    scale_P = (std_P + EPS).masked_fill(alone_P, 1.0)
    return _Standing(centred_B, centred_B / groups.rows(scale_P), constant_P, alone_P)


def _warn_of_groups_of_one(alone_P: Tensor) -> None:
    num_alone = int(alone_P.sum())
    if num_alone:
        warn_once(
            "groups of one",
            f"{num_alone} of {len(alone_P)} groups have one response: their advantage is their reward; "
            "sample at least two responses per problem",
        )
