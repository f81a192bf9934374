"""GSPO (Zheng et al. 2025, arXiv:2507.18071): one ratio per response, clipped as a whole."""

from __future__ import annotations

from egpo.losses.tokens import LARGEST_LOG_RATIO, Clip, LossTokens, TokenLoss


def gspo(tokens: LossTokens, clip: Clip) -> TokenLoss:
    """Return the clipped surrogate with the geometric mean of the response's ratios. With s = exp(mean(logp - old)):

        loss = max(-A s, -A clip(s, 1 - low, 1 + high))

    Every token of a response has the same value, and the gradient of its own log-probability. The paper averages over
    the tokens of a response and then over responses: `update.aggregation: sequence_mean`. Its clip is far narrower than
    that of a token's ratio: 3e-4 and 4e-4. Equal to verl's `compute_policy_loss_gspo`.
    """
    import torch

    mean_M = tokens.mean_of_rows(tokens.logp_M.detach() - tokens.old_logp_M)
    # The value is the response's ratio; the gradient is that of the token's own log-probability.
    log_ratio_M = mean_M + tokens.logp_M - tokens.logp_M.detach()
    ratio_M = log_ratio_M.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()
    plain_M = -tokens.advantage_M * ratio_M
    bounded_M = -tokens.advantage_M * ratio_M.clamp(1 - clip.low, 1 + clip.high)
    nothing_M = torch.zeros_like(tokens.advantage_M, dtype=torch.bool)
    return TokenLoss(torch.maximum(plain_M, bounded_M), (bounded_M > plain_M).detach(), nothing_M)
