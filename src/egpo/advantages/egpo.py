"""EGPO, additive (Hao et al. 2025, arXiv:2508.05118): GRPO's advantage plus a clipped bonus for entropy."""

import torch
from torch import Tensor

from egpo.advantages.groups import Groups
from egpo.advantages.grpo import grpo
from egpo.advantages.measures import describe, measured
from egpo.advantages.settings import egpo_faults, refuse
from egpo.advantages.signals import Metrics, Signals


def egpo(
    signals: Signals,
    *,
    lam: float = 0.4,
    alpha: float = 2.0,
    form: str = "clip_entropy",
    normalize: bool = True,
    metrics: Metrics | None = None,
) -> Tensor:
    """GRPO, plus a bonus for reasoning that kept its options open.

        A'[i] = A[i] + lam * clip(H[i], -|A[i]| / alpha, |A[i]| / alpha)     form="clip_entropy"
        A'[i] = A[i] + min(lam * H[i], |A[i]| / alpha)                       form="clip_bonus", the paper's equation

    The bonus never turns a sign (lam < alpha, alpha > 1). Where A is 0 it is 0: a group that agrees teaches nothing,
    under EGPO too. With A < 0 it shrinks the penalty, so a group no longer sums to zero. H is the entropy of the
    thinking segment; a response without one gets no bonus. lam = 0 is GRPO to the bit.
    """
    refuse(egpo_faults(lam, alpha, form), where="estimator `egpo`")
    entropy_B = measured(signals, "egpo")
    base_B = grpo(signals, normalize=normalize, metrics=metrics)
    cap_B = base_B.double().abs() / alpha
    clipped_B = entropy_B if form == "clip_entropy" else lam * entropy_B
    capped_B = clipped_B > cap_B
    clipped_B = clipped_B.nan_to_num(nan=0.0).clamp(-cap_B, cap_B)
    bonus_B = (lam * clipped_B if form == "clip_entropy" else clipped_B).to(base_B.dtype)
    if metrics is not None:
        describe(entropy_B, Groups.of(signals.group_B), "entropy", metrics)
        _describe_bonus(bonus_B, capped_B, torch.isfinite(entropy_B) & (base_B != 0), metrics)
    return base_B + bonus_B


def _describe_bonus(bonus_B: Tensor, capped_B: Tensor, eligible_B: Tensor, metrics: Metrics) -> None:
    """How often the cap decided is asked of the rows that have both an advantage and an entropy."""
    if len(bonus_B):
        metrics["egpo/bonus/mean"] = float(bonus_B.mean())
        metrics["egpo/bonus/max"] = float(bonus_B.max())
    if bool(eligible_B.any()):
        metrics["egpo/bonus/capped_frac"] = float(capped_B[eligible_B].double().mean())
