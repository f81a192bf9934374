"""EGPO, additive (Hao et al. 2025, arXiv:2508.05118): GRPO's advantage plus a clipped bonus for entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from egpo.advantages.grpo import grpo
from egpo.advantages.signals import Groups, Metrics, Signals, describe, measured
from egpo.errors import Fault
from egpo.sections import Positive, Section, Segment, checked, raised

if TYPE_CHECKING:
    from torch import Tensor


class EgpoSettings(Section):
    """The settings of `egpo`. With 0 < lam < alpha and alpha > 1, the bonus never changes the sign of an advantage A.

    The bonus is at most lam / alpha of |A| (`clip_entropy`), or 1 / alpha of |A| (`clip_bonus`).
    """

    lam: Positive = 0.4
    """Strength of the bonus; more than 0 and less than alpha."""
    alpha: Annotated[float, Field(gt=1)] = 2.0
    """Divisor in cap = |A| / alpha, where A is GRPO's advantage; `form` says what is capped. More than 1."""
    form: Literal["clip_entropy", "clip_bonus"] = "clip_entropy"
    """Bonus for entropy H. `clip_entropy`: lam * clip(H, -cap, cap). `clip_bonus` (the paper): min(lam * H, cap)."""
    entropy_mode: Segment = "thinking"
    """The segment whose entropy counts: thinking, answer or response."""

    @model_validator(mode="after")
    def _keeps_signs(self) -> EgpoSettings:
        if not self.lam < self.alpha:
            what = f"`lam` {self.lam:g} is not less than `alpha` {self.alpha:g}"
            raise raised(Fault(what, "lam", "lower it: a bonus of that size would change the sign of advantages"))
        return self


def egpo(
    signals: Signals,
    *,
    lam: float = 0.4,
    alpha: float = 2.0,
    form: str = "clip_entropy",
    normalize: bool = True,
    metrics: Metrics | None = None,
) -> Tensor:
    """Return GRPO's advantage plus a bonus for thinking with high entropy.

        A'[i] = A[i] + lam * clip(H[i], -|A[i]| / alpha, |A[i]| / alpha)     form="clip_entropy"
        A'[i] = A[i] + min(lam * H[i], |A[i]| / alpha)                       form="clip_bonus", the paper's equation

    The bonus never changes a sign (lam < alpha, alpha > 1). Where A is 0 it is 0: a group whose rewards are all equal
    has no gradient under EGPO either. With A < 0 it shrinks the penalty, so a group no longer sums to zero. H is the
    entropy of the thinking segment; a response without one gets no bonus. lam = 0 is GRPO to the bit.
    """
    # lam = 0 is allowed here, so that tests can compare with GRPO; a recipe must say `grpo` instead.
    checked(EgpoSettings, "estimator `egpo`", lam=lam if lam != 0 else 0.4, alpha=alpha, form=form)
    entropy_B = measured(signals, "egpo")
    base_B = grpo(signals, normalize=normalize, metrics=metrics)
    cap_B = base_B.double().abs() / alpha
    clipped_B = entropy_B if form == "clip_entropy" else lam * entropy_B
    capped_B = clipped_B > cap_B
    clipped_B = clipped_B.nan_to_num(nan=0.0).clamp(-cap_B, cap_B)
    bonus_B = (lam * clipped_B if form == "clip_entropy" else clipped_B).to(base_B.dtype)
    if metrics is not None:
        describe(entropy_B, Groups.of(signals.group_B), "entropy", metrics)
        _describe_bonus(bonus_B, capped_B, entropy_B.isfinite() & (base_B != 0), metrics)
    return base_B + bonus_B


def _describe_bonus(bonus_B: Tensor, capped_B: Tensor, eligible_B: Tensor, metrics: Metrics) -> None:
    """Report the bonus over all rows, and the fraction at the cap among rows with an advantage and an entropy."""
    if len(bonus_B):
        metrics["egpo/bonus/mean"] = float(bonus_B.mean())
        metrics["egpo/bonus/max"] = float(bonus_B.max())
    if bool(eligible_B.any()):
        metrics["egpo/bonus/capped_frac"] = float(capped_B[eligible_B].double().mean())
