"""CANON (Chen et al. 2025, arXiv:2509.23962): the halves of a group by entropy, compared with and within each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from egpo.advantages.grpo import compare_within_groups
from egpo.advantages.signals import Groups, Metrics, Signals, describe, measured
from egpo.sections import Fraction, Section, Segment, checked

if TYPE_CHECKING:
    from torch import Tensor


class CanonSettings(Section):
    """The settings of `canon`."""

    mu: Fraction = 1.0
    """Weight of the comparison with the other half; the comparison within the half has 1 - mu. With 0.5 and halves of
    equal size, `canon` is `grpo`."""
    entropy_mode: Segment = "response"
    """The segment whose entropy counts: thinking, answer or response."""


def canon(signals: Signals, *, mu: float = 1.0, normalize: bool = True, metrics: Metrics | None = None) -> Tensor:
    """Return the reward minus the means of the two halves of its group, split at the median of the entropy.

        A[i] = mu * (r[i] - mean_other) + (1 - mu) * (r[i] - mean_own)       divided by std_g + 1e-6 if normalize

    `mean_own`: the mean reward of the half that the response belongs to. In a group of odd size the upper half has one
    row more. Rows of equal entropy at the boundary belong to both halves in part. Rows without an entropy belong to
    none, and get GRPO's advantage, as do groups with fewer than two rows that have one. A group whose rewards are all
    equal gives exactly 0. A group of one row: A = r.
    """
    checked(CanonSettings, "estimator `canon`", mu=mu)
    entropy_B = measured(signals, "canon")
    standing = compare_within_groups(signals, metrics)
    groups, centred_B = standing.groups, standing.centred_B
    halves = _halves(entropy_B, groups)
    # Relative to the group's mean: a row without halves then has both means 0, which is GRPO.
    upper_B, lower_B = (groups.rows(_mean(groups, share_B, centred_B)) for share_B in (halves.upper_B, halves.lower_B))
    in_upper_B = mu * (centred_B - lower_B) + (1 - mu) * (centred_B - upper_B)
    in_lower_B = mu * (centred_B - upper_B) + (1 - mu) * (centred_B - lower_B)
    value_B = (halves.upper_B * in_upper_B + halves.lower_B * in_lower_B).where(halves.split_B, centred_B)
    if metrics is not None:
        describe(entropy_B, groups, "entropy", metrics)
        if bool(halves.split_B.any()):
            metrics["egpo/halves/difference"] = float((upper_B - lower_B)[halves.split_B].mean())
    return standing.advantages(value_B, normalize)


@dataclass(frozen=True)
class _Halves:
    """The part of each row in the upper and in the lower half of its group; both are 0 where the group is not split."""

    upper_B: Tensor
    lower_B: Tensor
    split_B: Tensor


def _halves(entropy_B: Tensor, groups: Groups) -> _Halves:
    """Split the rows that have an entropy. The lower half has n // 2 of a group's n rows."""
    import torch

    known_B = entropy_B.isfinite()
    num_known_P = groups.sum(known_B.double())
    split_B = known_B & groups.rows(num_known_P >= 2)
    row_K = split_B.nonzero()[:, 0]
    pair_K2 = torch.stack([groups.index_B[row_K].double(), entropy_B[row_K]], dim=1)
    # Sorted by group and entropy: the classes of rows with equal entropy.
    class_C2, class_K, size_C = torch.unique(pair_K2, dim=0, return_inverse=True, return_counts=True)
    group_C, size_C = class_C2[:, 0].long(), size_C.double()
    end_C = size_C.cumsum(0)
    start_P = end_C.new_full((len(groups.size_P),), torch.inf).scatter_reduce_(0, group_C, end_C - size_C, "amin")
    end_in_group_C = end_C - start_P[group_C]
    upper_C = ((end_in_group_C - (num_known_P // 2)[group_C]) / size_C).clamp(0.0, 1.0)
    upper_B = torch.zeros_like(entropy_B)
    upper_B[row_K] = upper_C[class_K]
    return _Halves(upper_B, (1 - upper_B) * split_B, split_B)


def _mean(groups: Groups, share_B: Tensor, value_B: Tensor) -> Tensor:
    """Return each group's mean of values by shares, 0 for a group without shares."""
    return (groups.sum(share_B * value_B) / groups.sum(share_B)).nan_to_num(nan=0.0)
