"""Clip-Cov (Cui et al. 2025, arXiv:2505.22617): no gradient for some tokens that would lower the entropy most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import model_validator

from egpo.errors import Fault
from egpo.losses.clipped import clipped
from egpo.losses.tokens import Clip, LossTokens, MiniBatchTokens, TokenLoss
from egpo.sections import Fraction, Section, raised

if TYPE_CHECKING:
    from torch import Tensor


class ClipCovSettings(Section):
    """The settings of `clip_cov`."""

    ratio: Fraction = 2e-4
    """Fraction of the mini-batch's tokens that lose their gradient; at least one token. 0: `clipped`."""
    lower: float = 1.0
    """Only tokens whose covariance is above this are drawn."""
    upper: float = 5.0
    """Only tokens whose covariance is below this are drawn."""

    @model_validator(mode="after")
    def _some_range(self) -> ClipCovSettings:
        if self.lower >= self.upper:
            raise raised(Fault(f"`lower` is {self.lower:g} and `upper` {self.upper:g}", "upper", "make `upper` larger"))
        return self


def covariance(tokens: MiniBatchTokens) -> Tensor:
    """Return each token's part of the covariance of advantage and log-probability (float64):

    c = (A - mean A) (logp - mean logp)        over all tokens of the mini-batch

    The sum of c over tokens drives the entropy: where it is positive, a policy-gradient step lowers the entropy.
    """
    advantage_K, logp_K = tokens.advantage_K.double(), tokens.old_logp_K.double()
    return (advantage_K - advantage_K.mean()) * (logp_K - logp_K.mean())


def num_chosen(ratio: float, num_tokens: int) -> int:
    """Return how many of the tokens are chosen: the fraction, rounded down, but at least one unless it is 0."""
    return min(num_tokens, max(1, int(ratio * num_tokens))) if ratio > 0 else 0


def draw(tokens: MiniBatchTokens, *, ratio: float = 2e-4, lower: float = 1.0, upper: float = 5.0) -> Tensor:
    """Draw tokens at random among those with lower < c < upper: those with the smallest random numbers."""
    import torch

    covariance_K = covariance(tokens)
    place_N = ((covariance_K > lower) & (covariance_K < upper)).nonzero()[:, 0]
    order_N = tokens.uniform_K[place_N].argsort(stable=True)
    marked_K = torch.zeros_like(covariance_K, dtype=torch.bool)
    marked_K[place_N[order_N[: num_chosen(ratio, len(covariance_K))]]] = True
    return marked_K


def clip_cov(
    tokens: LossTokens, clip: Clip, *, ratio: float = 2e-4, lower: float = 1.0, upper: float = 5.0
) -> TokenLoss:
    """Return the clipped surrogate without the tokens that were drawn:

        loss = 0                                             for a drawn token
        loss = max(-A q, -A clip(q, 1 - low, 1 + high))      for all others

    A drawn token still counts in the mean of the loss, as in verl. The settings are those of `draw`.
    """
    import torch

    found = clipped(tokens, clip)
    if tokens.marked_M is None:
        return found
    loss_M = torch.where(tokens.marked_M, torch.zeros_like(found.loss_M), found.loss_M)
    return TokenLoss(loss_M, found.clipped_M & ~tokens.marked_M, found.capped_M & ~tokens.marked_M)
