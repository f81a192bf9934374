"""EGPO, calibrated (Zhao et al. 2026, arXiv:2602.22751): the advantage scaled by confidence against the group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from egpo.advantages.grpo import grpo
from egpo.advantages.signals import Groups, Metrics, Signals, describe, measured
from egpo.errors import InputError
from egpo.sections import Fraction, Positive, Section, Segment, checked

if TYPE_CHECKING:
    from torch import Tensor


class EgpoCalibratedSettings(Section):
    """The settings of `egpo_calibrated`. Within their bounds, a weight never changes the sign of an advantage.

    The bounds are 0 <= lambda_min <= 1 <= lambda_max < inf and eps > 0.
    """

    lambda_min: Fraction = 0.5
    """Lowest weight of an advantage."""
    lambda_max: Annotated[float, Field(ge=1)] = 2.0
    """Highest weight of an advantage."""
    eps: Positive = 1e-6
    """Added to the entropy, so that the ratio is finite where the entropy is 0."""
    sides: Literal["both", "asymmetric", "positive_only"] = "both"
    """Bounds of the weight by correctness. `both`: [lambda_min, lambda_max] for all. `asymmetric`: right responses
    [1, lambda_max], wrong ones [lambda_min, 1]. `positive_only`: weight 1 for wrong ones."""
    measure: Literal["entropy", "nll"] = "entropy"
    """What is measured: `entropy` (exact), or `nll` (the mean of -log p of the sampled tokens)."""
    entropy_mode: Segment = "answer"
    """The segment that is measured: thinking, answer or response."""


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
    """Return GRPO's advantage times the response's confidence relative to its group.

        A'[i] = A[i] * clip(mean_g(H) / (H[i] + eps), lambda_min, lambda_max)

    sides="both": a confident wrong answer is punished more. "asymmetric": right rows are clipped to [1, lambda_max],
    wrong ones to [lambda_min, 1]. "positive_only": wrong rows keep weight 1. measure="nll" takes the mean of -log p of
    the sampled tokens instead of H. A row whose segment is empty or not finite has weight 1 and is left out of its
    group's mean. A group whose H all lie far under eps has weight lambda_min. lambda_min = lambda_max = 1 is GRPO to
    the bit.
    """
    checked(
        EgpoCalibratedSettings,
        "estimator `egpo_calibrated`",
        lambda_min=lambda_min,
        lambda_max=lambda_max,
        eps=eps,
        sides=sides,
        measure=measure,
    )
    value_B = measured(signals, "egpo_calibrated", measure)
    groups = Groups.of(signals.group_B)
    # Rounding can leave the entropy of certain tokens below 0; past -eps the ratio would turn negative.
    certain_B = value_B.clamp(min=0.0)
    ratio_B = groups.rows(groups.mean_where(certain_B.isfinite(), certain_B)) / (certain_B + eps)
    bounds = _bounds(signals, sides, lambda_min, lambda_max)
    weight_B = ratio_B.clamp(bounds.low_B, bounds.high_B).nan_to_num(nan=1.0)
    if metrics is not None:
        describe(value_B, groups, measure, metrics)
        _describe_weights(weight_B, ratio_B[ratio_B.isfinite()], metrics)
    base_B = grpo(signals, normalize=normalize, metrics=metrics)
    return base_B * weight_B.to(base_B.dtype)


@dataclass(frozen=True)
class _Bounds:
    low_B: Tensor
    high_B: Tensor


def _bounds(signals: Signals, sides: str, lambda_min: float, lambda_max: float) -> _Bounds:
    low_B = signals.reward_B.double().new_full(signals.reward_B.shape, lambda_min)
    high_B = low_B.new_full(low_B.shape, lambda_max)
    if sides == "both":
        return _Bounds(low_B, high_B)
    if signals.correct_B is None:
        raise InputError(
            f"`correct_B` is missing, which `sides={sides}` needs",
            where="estimator `egpo_calibrated`",
            fix="give Signals(correct_B=...), or use `sides=both`",
        )
    right_B = signals.correct_B.bool()
    if sides == "asymmetric":
        return _Bounds(low_B.masked_fill(right_B, 1.0), high_B.masked_fill(~right_B, 1.0))
    return _Bounds(low_B.masked_fill(~right_B, 1.0), high_B.masked_fill(~right_B, 1.0))


def _describe_weights(weight_B: Tensor, ratio_K: Tensor, metrics: Metrics) -> None:
    """Report the weights over all rows, and the largest ratio before the clip."""
    if len(weight_B):
        metrics["egpo/weight/mean"] = float(weight_B.mean())
        metrics["egpo/weight/std"] = float(weight_B.std(correction=0))
        metrics["egpo/weight/min"] = float(weight_B.min())
        metrics["egpo/weight/max"] = float(weight_B.max())
    if len(ratio_K):
        metrics["egpo/ratio/max"] = float(ratio_K.max())
