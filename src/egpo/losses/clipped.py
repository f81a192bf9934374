"""PPO's clipped surrogate (Schulman et al. 2017, arXiv:1707.06347), the loss of GRPO and DAPO."""

from __future__ import annotations

from egpo.losses.tokens import Clip, LossTokens, TokenLoss


def clipped(tokens: LossTokens, clip: Clip) -> TokenLoss:
    """Return the clipped surrogate. With the ratio q = exp(logp - old):

        loss = max(-A q, -A clip(q, 1 - low, 1 + high))
        loss = min(loss, -A dual)                          where A < 0 (Ye et al. 2020, arXiv:1912.09729)

    Where a clip is active, the token has no gradient. Where old and new policy are equal, loss = -A and its gradient is
    that of -A logp. Equal to verl's `compute_policy_loss_vanilla`, whose dual clip is always on, at 3; None is off.
    """
    import torch

    # The ratio is at most exp(20), so that its product with A stays finite. A token at this bound has no gradient.
    ratio_M, advantage_M = tokens.log_ratio_M().exp(), tokens.advantage_M
    plain_M = -advantage_M * ratio_M
    bounded_M = -advantage_M * ratio_M.clamp(1 - clip.low, 1 + clip.high)
    loss_M = torch.maximum(plain_M, bounded_M)
    capped_M = torch.zeros_like(advantage_M, dtype=torch.bool)
    if clip.dual is not None:
        cap_M = -advantage_M * clip.dual
        capped_M = (advantage_M < 0) & (loss_M > cap_M)
        loss_M = torch.where(capped_M, cap_M, loss_M)
    return TokenLoss(loss_M, (bounded_M > plain_M).detach(), capped_M.detach())
