"""KL-Cov (Cui et al. 2025, arXiv:2505.22617): a KL term for the tokens that would lower the entropy most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from egpo.losses.clip_cov import covariance, num_chosen
from egpo.losses.tokens import Clip, LossTokens, MiniBatchTokens, TokenLoss
from egpo.sections import Fraction, Section

if TYPE_CHECKING:
    from torch import Tensor


class KlCovSettings(Section):
    """The settings of `kl_cov`."""

    ratio: Fraction = 2e-3
    """Fraction of the mini-batch's tokens that get a KL term: those with the largest covariance; at least one. 0: no
    token."""
    weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the KL term."""
    tolerance: Annotated[float, Field(ge=0)] = 1e-3
    """Differences of log-probabilities up to this, in nats, are rounding errors and have no KL term."""


def largest(tokens: MiniBatchTokens, *, ratio: float = 2e-3, weight: float = 1.0, tolerance: float = 1e-3) -> Tensor:
    """Choose the tokens with the largest covariance of advantage and log-probability."""
    import torch

    covariance_K = covariance(tokens)
    order_K = covariance_K.argsort(descending=True, stable=True)
    marked_K = torch.zeros_like(covariance_K, dtype=torch.bool)
    marked_K[order_K[: num_chosen(ratio, len(covariance_K))]] = True
    return marked_K


def kl_cov(
    tokens: LossTokens, clip: Clip, *, ratio: float = 2e-3, weight: float = 1.0, tolerance: float = 1e-3
) -> TokenLoss:
    """Return the surrogate without a clip, plus a KL term for the chosen tokens. With the ratio q = exp(logp - old):

        loss = -A q + weight * |logp - old|      for a chosen token whose |logp - old| > tolerance
        loss = -A q                              for all others

    `clip` is not used. The gradient of |x| is its sign, however small x is. Old log-probabilities are recorded by the
    sampler, so that without a tolerance rounding errors alone would give whole gradients in the first optimizer step.
    """
    import torch

    log_ratio_M = tokens.log_ratio_M()
    loss_M = -tokens.advantage_M * log_ratio_M.exp()
    if tokens.marked_M is not None and weight:
        far_M = tokens.marked_M & (log_ratio_M.detach().abs() > tolerance)
        loss_M = loss_M + weight * torch.where(far_M, log_ratio_M.abs(), torch.zeros_like(log_ratio_M))
    nothing_M = torch.zeros_like(loss_M, dtype=torch.bool)
    return TokenLoss(loss_M, nothing_M, nothing_M)
