"""EDGE-GRPO's entropy-driven advantage (Zhang et al. 2025, arXiv:2507.21848): the advantage divided by entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from egpo.advantages.grpo import grpo
from egpo.advantages.signals import Groups, Metrics, Signals, describe, describe_weights, measured
from egpo.sections import Positive, Section, Segment, checked

if TYPE_CHECKING:
    from torch import Tensor


class EdgeSettings(Section):
    """The settings of `edge`."""

    mean_over: Literal["group", "batch"] = "group"
    """The responses whose mean entropy is compared with: those of the group (the paper), or of the whole batch (its
    reference code)."""
    eps: Positive = 1e-6
    """Added to the entropy, so that the ratio is finite where the entropy is 0."""
    entropy_mode: Segment = "response"
    """The segment whose entropy counts: thinking, answer or response."""


def edge(
    signals: Signals,
    *,
    mean_over: str = "group",
    eps: float = 1e-6,
    normalize: bool = True,
    metrics: Metrics | None = None,
) -> Tensor:
    """Return GRPO's advantage times the mean entropy over the response's own, without a bound.

        A'[i] = A[i] * mean(H) / (H[i] + eps)          mean over the group, or over the batch

    A confident right answer is rewarded more, and a confident wrong one punished more. `egpo_calibrated` is the same
    with a clip. H has no gradient. A row whose segment is empty or not finite has weight 1 and is left out of the mean.
    Where A is 0 the result is 0.
    """
    checked(EdgeSettings, "estimator `edge`", mean_over=mean_over, eps=eps)
    value_B = measured(signals, "edge")
    groups = Groups.of(signals.group_B)
    # Rounding can leave the entropy of certain tokens below 0.
    certain_B = value_B.clamp(min=0.0)
    known_B = certain_B.isfinite()
    mean_B = groups.rows(groups.mean_where(known_B, certain_B)) if mean_over == "group" else certain_B[known_B].mean()
    weight_B = (mean_B / (certain_B + eps)).nan_to_num(nan=1.0)
    if metrics is not None:
        describe(value_B, groups, "entropy", metrics)
        describe_weights(weight_B, metrics)
    base_B = grpo(signals, normalize=normalize, metrics=metrics)
    return (base_B.double() * weight_B).to(base_B.dtype)
