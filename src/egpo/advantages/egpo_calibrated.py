"""EGPO, calibrated (Zhao et al. 2026, arXiv:2602.22751): the advantage scaled by confidence against the group."""

from dataclasses import dataclass

import torch
from torch import Tensor

from egpo.advantages.groups import Groups
from egpo.advantages.grpo import grpo
from egpo.advantages.measures import describe, measured
from egpo.advantages.settings import calibration_faults, refuse
from egpo.advantages.signals import Metrics, Signals
from egpo.errors import InputError


def egpo_calibrated(
    signals: Signals,
    *,
    lambda_min: float = 0.5,
    lambda_max: float = 2.0,
    eps: float = 1e-6,
    sides: str = "both",
    measure: str = "entropy",
    normalize: bool = True,
    metrics: Metrics | None = None,
) -> Tensor:
    """GRPO, times how confident the response was against its group.

        A'[i] = A[i] * clip(mean_g(H) / (H[i] + eps), lambda_min, lambda_max)

    sides="both": a confident wrong answer is punished more. "asymmetric": right rows are clipped to [1, lambda_max],
    wrong ones to [lambda_min, 1]. "positive_only": wrong rows keep weight 1. measure="nll" takes the mean of -log p of
    the sampled tokens in the place of H. A row whose segment is empty or not finite has weight 1 and is left out of its
    group's mean. A group whose H all lie far under eps has weight lambda_min. lambda_min = lambda_max = 1 is GRPO to
    the bit.
    """
    refuse(calibration_faults(lambda_min, lambda_max, eps, sides, measure), where="estimator `egpo_calibrated`")
    value_B = measured(signals, "egpo_calibrated", measure)
    groups = Groups.of(signals.group_B)
    # Rounding can leave the entropy of certain tokens below 0; past -eps the ratio would turn negative.
    certain_B = value_B.clamp(min=0.0)
    ratio_B = groups.rows(groups.mean_where(torch.isfinite(certain_B), certain_B)) / (certain_B + eps)
    bounds = _bounds(signals, sides, lambda_min, lambda_max)
    weight_B = ratio_B.clamp(bounds.low_B, bounds.high_B).nan_to_num(nan=1.0)
    if metrics is not None:
        describe(value_B, groups, measure, metrics)
        _describe_weights(weight_B, ratio_B[torch.isfinite(ratio_B)], metrics)
    base_B = grpo(signals, normalize=normalize, metrics=metrics)
    return base_B * weight_B.to(base_B.dtype)


@dataclass(frozen=True)
class _Bounds:
    low_B: Tensor
    high_B: Tensor


def _bounds(signals: Signals, sides: str, lambda_min: float, lambda_max: float) -> _Bounds:
    low_B = torch.full_like(signals.reward_B, lambda_min, dtype=torch.float64)
    high_B = torch.full_like(low_B, lambda_max)
    if sides == "both":
        return _Bounds(low_B, high_B)
    if signals.correct_B is None:
        raise InputError(
            f"`correct_B` is missing, and `sides` is `{sides}`",
            where="estimator `egpo_calibrated`",
            fix="give Signals(correct_B=...), or take sides `both`",
        )
    right_B = signals.correct_B.bool()
    if sides == "asymmetric":
        return _Bounds(low_B.masked_fill(right_B, 1.0), high_B.masked_fill(~right_B, 1.0))
    return _Bounds(low_B.masked_fill(~right_B, 1.0), high_B.masked_fill(~right_B, 1.0))


def _describe_weights(weight_B: Tensor, ratio_K: Tensor, metrics: Metrics) -> None:
    """The weights over all rows, and the largest ratio before the clip."""
    if len(weight_B):
        metrics["egpo/weight/mean"] = float(weight_B.mean())
        metrics["egpo/weight/std"] = float(weight_B.std(correction=0))
        metrics["egpo/weight/min"] = float(weight_B.min())
        metrics["egpo/weight/max"] = float(weight_B.max())
    if len(ratio_K):
        metrics["egpo/ratio/max"] = float(ratio_K.max())
