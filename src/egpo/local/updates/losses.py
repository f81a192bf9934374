"""The clipped surrogate (Schulman et al. 2017, arXiv:1707.06347) per token. M response tokens.

The KL divergence from the reference, estimated at the tokens that were sampled.

Schulman 2020, joschu.net/blog/kl-approx.html. B rows, T tokens.

How the losses of tokens become the loss of a mini-batch, as a weight for every token of a response.

Weights are made for a mini-batch whole, before it is cut into micro-batches: the loss is the sum of weight * loss over
tokens, wherever the cuts fall. B rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

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


# exp(20) is still finite beside other tokens' terms; past it a token has no gradient, in verl too.


def k1(logp: Tensor, reference_logp: Tensor) -> Tensor:
    """logp - ref: without bias, and often negative. As a loss it teaches nothing: its expected gradient is 0."""
    return logp - reference_logp


def k2(logp: Tensor, reference_logp: Tensor) -> Tensor:
    """(logp - ref)^2 / 2: biased and never negative; its gradient is the KL's own in expectation."""
    return (logp - reference_logp).square() / 2


def k3(logp: Tensor, reference_logp: Tensor) -> Tensor:
    """exp(ref - logp) - 1 - (ref - logp): without bias and never negative.

    verl cuts the value at 10, where a token loses its gradient just as the policy has left the reference. Here only the
    exponent is bounded, at 20.
    """
    log_ratio = (reference_logp - logp).clamp(max=LARGEST_LOG_RATIO)
    return torch.expm1(log_ratio) - log_ratio


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def kl_per_response(logp_BT: Tensor, reference_BT: Tensor, mask_BT: Tensor, estimator: str) -> Tensor:
    """The sum over a response's tokens; 0 for a response without tokens."""
    return (KL_ESTIMATORS[estimator](logp_BT, reference_BT) * mask_BT).sum(1)


def less_kl(reward_B: Tensor, kl_B: Tensor, weight: float) -> Tensor:
    """The reward that an estimator sees under `kl_in: reward`: r - weight * sum over tokens of k."""
    return reward_B - weight * kl_B.to(reward_B)


Aggregation = Literal["token_mean", "sequence_mean", "fixed_length"]


def token_weights(length_B: Tensor, aggregation: Aggregation, horizon: int) -> Tensor:
    """The weight of each token of row b, of L[b] tokens, among R rows that have tokens (float32):

        token_mean      1 / sum(L)          all tokens alike               verl's token-mean
        sequence_mean   1 / (R * L[b])      all responses alike            verl's seq-mean-token-mean
        fixed_length    1 / (R * horizon)   length neither helps nor hurts verl's seq-mean-token-sum-norm, at a fixed
                                                                           loss_scale_factor

    A row without tokens has weight 0 and does not count, as in verl.
    """
    length_B = length_B.double()
    num_rows = (length_B > 0).sum().clamp(min=1)
    if aggregation == "token_mean":
        total_B = length_B.sum().expand_as(length_B)
    elif aggregation == "sequence_mean":
        total_B = num_rows * length_B
    else:
        total_B = (num_rows * horizon).expand_as(length_B)
    return torch.where(length_B > 0, 1 / total_B.clamp(min=1), 0.0).float()
