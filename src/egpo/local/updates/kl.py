"""The KL divergence from the reference, estimated at the tokens that were sampled.

Schulman 2020, joschu.net/blog/kl-approx.html. B rows, T tokens.
"""

from collections.abc import Callable

import torch
from torch import Tensor

# exp(20) is still finite beside other tokens' terms; past it a token has no gradient, in verl too.
LARGEST_LOG_RATIO = 20.0


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
