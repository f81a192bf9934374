"""EGPO, calibrated (Zhao et al. 2026, arXiv:2602.22751): the advantage scaled by confidence against the group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from egpo.advantages.grpo import Standing, compare_within_groups
from egpo.advantages.signals import Groups, Metrics, Signals, describe, describe_weights, measured, right
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
    recover: Annotated[float, Field(ge=0)] = 0.0
    """Base advantage, times -1, of the responses of groups that are all wrong with equal rewards. 0: such groups have
    no gradient. Other values need `constant_groups: keep`."""
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
    recover: float = 0.0,
    normalize: bool = True,
    metrics: Metrics | None = None,
) -> Tensor:
    """Return GRPO's advantage times the response's confidence relative to its group.

        A'[i] = A[i] * clip(mean_g(H) / (H[i] + eps), lambda_min, lambda_max)
        A'[i] = -recover * clip(...)       in groups of at least two rows that are all wrong and have equal rewards

    sides="both": a confident wrong answer is punished more. "asymmetric": right rows are clipped to [1, lambda_max],
    wrong ones to [lambda_min, 1]. "positive_only": wrong rows keep weight 1. measure="nll" takes the mean of -log p of
    the sampled tokens instead of H. A row whose segment is empty or not finite has weight 1 and is left out of its
    group's mean. A group whose H all lie far under eps has weight lambda_min. lambda_min = lambda_max = 1 is GRPO to
    the bit, if recover is 0.
    """
    checked(
        EgpoCalibratedSettings,
        "estimator `egpo_calibrated`",
        lambda_min=lambda_min,
        lambda_max=lambda_max,
        eps=eps,
        sides=sides,
        measure=measure,
        recover=recover,
    )
    value_B = measured(signals, "egpo_calibrated", measure)
    groups = Groups.of(signals.group_B)
    # Rounding can leave the entropy of certain tokens below 0; past -eps the ratio would turn negative.
    certain_B = value_B.clamp(min=0.0)
    ratio_B = groups.rows(groups.mean_where(certain_B.isfinite(), certain_B)) / (certain_B + eps)
    bounds = _bounds(signals, sides, lambda_min, lambda_max)
    weight_B = ratio_B.clamp(bounds.low_B, bounds.high_B).nan_to_num(nan=1.0)
    standing = compare_within_groups(signals, metrics)
    base_B = standing.advantages(standing.centred_B, normalize)
    if recover:
        base_B = base_B.masked_fill(_lost(signals, standing, metrics), -recover)
    if metrics is not None:
        describe(value_B, groups, measure, metrics)
        describe_weights(weight_B, metrics)
        if bool(ratio_B.isfinite().any()):
            metrics["egpo/ratio/max"] = float(ratio_B[ratio_B.isfinite()].max())
    return base_B * weight_B.to(base_B.dtype)


def _lost(signals: Signals, standing: Standing, metrics: Metrics | None) -> Tensor:
    """Return a mask of the rows of groups whose rewards are equal and whose responses are all wrong."""
    right_B = right(signals, "egpo_calibrated", ", which `recover` needs")
    lost_P = standing.constant_P & (standing.groups.sum(right_B.double()) == 0)
    if metrics is not None and len(lost_P):
        metrics["egpo/recovered_frac"] = float(lost_P.double().mean())
    return standing.groups.rows(lost_P)


@dataclass(frozen=True)
class _Bounds:
    low_B: Tensor
    high_B: Tensor


def _bounds(signals: Signals, sides: str, lambda_min: float, lambda_max: float) -> _Bounds:
    low_B = signals.reward_B.double().new_full(signals.reward_B.shape, lambda_min)
    high_B = low_B.new_full(low_B.shape, lambda_max)
    if sides == "both":
        return _Bounds(low_B, high_B)
    right_B = right(signals, "egpo_calibrated", f", which `sides={sides}` needs")
    if sides == "asymmetric":
        return _Bounds(low_B.masked_fill(right_B, 1.0), high_B.masked_fill(~right_B, 1.0))
    return _Bounds(low_B.masked_fill(~right_B, 1.0), high_B.masked_fill(~right_B, 1.0))
