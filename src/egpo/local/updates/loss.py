"""The clipped surrogate (Schulman et al. 2017, arXiv:1707.06347) per token. M response tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST_LOG_RATIO = 20.0


@dataclass(frozen=True, eq=False)
class Surrogate:
    """`loss_M` has a gradient; the rest is what verl logs of it, per token.

    `clipped_M`: the clip of the ratio decided (actor/pg_clipfrac). `capped_M`: the dual clip decided
    (actor/pg_clipfrac_lower). `minus_log_ratio_M`: old - new logp (actor/ppo_kl is its mean).
    """

    loss_M: Tensor
    clipped_M: Tensor
    capped_M: Tensor
    minus_log_ratio_M: Tensor


def clipped_surrogate(
    logp_M: Tensor, old_logp_M: Tensor, advantage_M: Tensor, *, low: float, high: float, dual: float | None = None
) -> Surrogate:
    """With the ratio q = exp(logp - old):

        loss = max(-A q, -A clip(q, 1 - low, 1 + high))
        loss = min(loss, -A dual)                          where A < 0 (Ye et al. 2020, arXiv:1912.09729)

    Where the clip decides, the token has no gradient. Where old and new policy are one, loss = -A and its gradient is
    that of -A logp. As verl's `compute_policy_loss_vanilla`, whose dual clip is always on, at 3: here None is off.
    """
    # Not beyond exp(20): the product with A must stay finite. Such a token is clipped, or has no gradient.
    log_ratio_M = (logp_M - old_logp_M).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    ratio_M = log_ratio_M.exp()
    plain_M = -advantage_M * ratio_M
    bounded_M = -advantage_M * ratio_M.clamp(1 - low, 1 + high)
    loss_M = torch.maximum(plain_M, bounded_M)
    capped_M = torch.zeros_like(advantage_M, dtype=torch.bool)
    if dual is not None:
        cap_M = -advantage_M * dual
        capped_M = (advantage_M < 0) & (loss_M > cap_M)
        loss_M = torch.where(capped_M, cap_M, loss_M)
    return Surrogate(loss_M, (bounded_M > plain_M).detach(), capped_M.detach(), -log_ratio_M.detach())
