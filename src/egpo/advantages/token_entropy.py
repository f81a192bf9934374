"""Reasoning with Exploration (Cheng et al. 2025, arXiv:2506.14758): a bonus for the entropy of each token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from egpo.advantages.grpo import grpo
from egpo.advantages.signals import Metrics, Signals
from egpo.sections import Positive, Section, checked

if TYPE_CHECKING:
    from torch import Tensor


class TokenEntropySettings(Section):
    """The settings of `token_entropy`. With kappa > 1 the bonus never changes the sign of an advantage."""

    alpha: Positive = 0.4
    """Strength of the bonus."""
    kappa: Annotated[float, Field(gt=1)] = 2.0
    """Divisor of the cap |A| / kappa of the bonus, where A is GRPO's advantage. More than 1."""


def token_entropy(
    signals: Signals,
    entropy_BT: Tensor,
    mask_BT: Tensor,
    *,
    alpha: float = 0.4,
    kappa: float = 2.0,
    normalize: bool = True,
    metrics: Metrics | None = None,
) -> Tensor:
    """Return GRPO's advantage plus a bonus for each token, at most 1 / kappa of the advantage:

        A'[i, t] = A[i] + min(alpha * H[i, t], |A[i]| / kappa)

    EGPO's `clip_bonus` with the entropy of the token in place of the mean over a segment. H has no gradient. Where A is
    0 the bonus is 0. alpha = 0 is GRPO to the bit.
    """
    # alpha = 0 is allowed here, so that tests can compare with GRPO; a recipe must say `grpo` instead.
    checked(TokenEntropySettings, "estimator `token_entropy`", alpha=alpha if alpha != 0 else 0.4, kappa=kappa)
    base_B = grpo(signals, normalize=normalize, metrics=metrics)
    mask_BT = mask_BT.bool()
    cap_BT = (base_B.double().abs() / kappa).unsqueeze(1)
    wanted_BT = alpha * entropy_BT.detach().double().nan_to_num(nan=0.0).clamp(min=0.0)
    bonus_BT = wanted_BT.minimum(cap_BT) * mask_BT
    if metrics is not None and bool(mask_BT.any()):
        metrics["egpo/bonus/mean"] = float(bonus_BT[mask_BT].mean())
        metrics["egpo/bonus/max"] = float(bonus_BT[mask_BT].max())
        eligible_BT = mask_BT & (cap_BT > 0)
        if bool(eligible_BT.any()):
            metrics["egpo/bonus/capped_frac"] = float((wanted_BT > cap_BT)[eligible_BT].double().mean())
    return base_B.unsqueeze(1) * mask_BT + bonus_BT.to(base_B.dtype)
