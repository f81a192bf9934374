"""CISPO (MiniMax 2025, arXiv:2506.13585): the clipped ratio is a weight, and every token keeps its gradient."""

from __future__ import annotations

from egpo.losses.tokens import Clip, LossTokens, TokenLoss


def cispo(tokens: LossTokens, clip: Clip) -> TokenLoss:
    """Return the policy-gradient loss with the clipped ratio as a constant weight. With q = exp(logp - old):

        loss = -sg(clip(q, 1 - low, 1 + high)) A logp

    sg: no gradient. PPO's surrogate drops the gradient of a token whose ratio is clipped; here it is only bounded. The
    value of the loss is not near 0 and means nothing; its gradient is that of `clipped` where old and new policy are
    equal. The dual clip is not used. Equal to verl's `compute_policy_loss_cispo`.
    """
    import torch

    ratio_M = tokens.log_ratio_M().detach().exp()
    weight_M = ratio_M.clamp(1 - clip.low, 1 + clip.high)
    clipped_M = (weight_M != ratio_M) & (tokens.advantage_M != 0)
    return TokenLoss(-weight_M * tokens.advantage_M * tokens.logp_M, clipped_M, torch.zeros_like(clipped_M))
