"""GTPO (Tan et al. 2025, arXiv:2508.04349): rewards of tokens, reshaped by their entropy at each position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from egpo.advantages.grpo import EPS
from egpo.advantages.grpo_s import GtpoSettings, Sides
from egpo.advantages.signals import SAME_ROUNDINGS, Groups, Metrics, Signals
from egpo.sections import checked

if TYPE_CHECKING:
    from torch import Tensor


def gtpo(
    signals: Signals,
    entropy_BT: Tensor,
    mask_BT: Tensor,
    *,
    alpha1: float = 1.0,
    alpha2: float = 0.1,
    compare: str = "apart",
    eps: float = 1e-6,
    normalize: bool = True,
    metrics: Metrics | None = None,
) -> Tensor:
    """Return rewards of tokens that are shaped by entropy, compared with those of the same side.

        s[i, t] = alpha1 * r[i] + alpha2 * H[i, t] / mean_right(H[., t])                          right responses
        s[j, t] = -alpha1 - alpha2 * (1 / (H[j, t] + eps)) / mean_wrong(1 / (H[., t] + eps))      wrong responses
        A[i, t] = (s[i, t] - mean(s)) / (std(s) + 1e-6)                               no division if not normalize

    The means at position t run over the right, or the wrong, responses of the group that have a token there: H / mean
    is the paper's (H / sum) * count. mean(s) and std(s) run over all tokens of these responses (compare="apart"), or of
    the group. An entropy that is not a number has the share 1. Where the compared rewards are equal A is exactly 0: so
    it is for alpha2 = 0 under "apart". Under "apart", groups in which all responses are right, or all wrong, have a
    gradient.
    """
    checked(GtpoSettings, "estimator `gtpo`", alpha1=alpha1, alpha2=alpha2, compare=compare, eps=eps)
    sides, mask_BT = Sides.of(signals, "gtpo"), mask_BT.bool()
    entropy_BT = entropy_BT.detach().double()
    known_BT = mask_BT & entropy_BT.isfinite()
    weight_BT = sides.weights(entropy_BT, eps)
    mean_BT = _per_group(sides.groups, weight_BT.where(known_BT, 0.0)) / _per_group(sides.groups, known_BT.double())
    share_BT = (weight_BT / mean_BT).where(known_BT, 1.0).nan_to_num(nan=1.0)
    shaped_BT = sides.shaped(share_BT, alpha1, alpha2) * mask_BT
    compared = sides.groups if compare == "apart" else Groups.of(signals.group_B)
    if metrics is not None and bool(mask_BT.any()):
        metrics["egpo/share/max"] = float(share_BT[mask_BT].max())
    return _standardised(shaped_BT, mask_BT, compared, normalize).to(signals.reward_B.dtype)


def _per_group(groups: Groups, value_BT: Tensor) -> Tensor:
    """Return the sum over the rows of a group at each position, at each of its rows."""
    sum_PT = value_BT.new_zeros(len(groups.size_P), value_BT.shape[1]).index_add_(0, groups.index_B, value_BT)
    return sum_PT[groups.index_B]


def _standardised(shaped_BT: Tensor, mask_BT: Tensor, groups: Groups, normalize: bool) -> Tensor:
    """Return the rewards minus the mean over the group's tokens, in units of their standard deviation; 0 if equal."""
    import torch

    num_P = groups.sum(mask_BT.sum(1).double())
    mean_P = groups.sum(shaped_BT.sum(1)) / num_P.clamp(min=1)
    highest_P = groups.max(shaped_BT.masked_fill(~mask_BT, -torch.inf).amax(1)) if mask_BT.shape[1] else mean_P
    lowest_P = groups.min(shaped_BT.masked_fill(~mask_BT, torch.inf).amin(1)) if mask_BT.shape[1] else mean_P
    largest_P = torch.maximum(highest_P.abs(), lowest_P.abs()).clamp(min=1.0)
    equal_P = ~(highest_P - lowest_P > SAME_ROUNDINGS * torch.finfo(shaped_BT.dtype).eps * largest_P)
    used_BT = mask_BT & ~groups.rows(equal_P).unsqueeze(1)
    centred_BT = (shaped_BT - groups.rows(mean_P).unsqueeze(1)) * used_BT
    if not normalize:
        return centred_BT
    std_P = (groups.sum(centred_BT.square().sum(1)) / (num_P - 1).clamp(min=1)).sqrt()
    return centred_BT / groups.rows(std_P + EPS).unsqueeze(1)
