"""The softmax of one slice of logits, how two slices merge, and the gradient of logp in one slice.

torch on any device; where there are kernels for it (Triton on CUDA, C on CPUs), each pass reads the slice once.
N tokens, C words in a slice.
"""

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from egpo.native.library import address, kernels, suits


@dataclass(frozen=True)
class SliceStats:
    """log sum exp of the tempered logits, and the entropy of the softmax over these words alone."""

    lse_N: Tensor
    entropy_N: Tensor


def slice_stats(logit_NC: Tensor, temperature: float) -> SliceStats:
    """Of logits / temperature. Uses up `logit_NC`."""
    if _has_triton(logit_NC):
        from egpo.token_stats.kernels import fused_slice_stats

        return SliceStats(*fused_slice_stats(logit_NC, temperature))
    if suits(logit_NC):
        lse_N, entropy_N = logit_NC.new_empty(len(logit_NC)), logit_NC.new_empty(len(logit_NC))
        kernels().slice_stats(*map(address, (logit_NC, lse_N, entropy_N)), *logit_NC.shape, 1 / temperature)
        return SliceStats(lse_N, entropy_N)
    highest_N = logit_NC.amax(1)
    logit_NC.sub_(highest_N.unsqueeze(1)).div_(temperature)
    exp_NC = logit_NC.exp()
    sum_N = exp_NC.sum(1)
    entropy_N = sum_N.log() - exp_NC.mul_(logit_NC).sum(1) / sum_N
    return SliceStats(highest_N / temperature + sum_N.log(), entropy_N)


def merge(one: SliceStats, other: SliceStats) -> SliceStats:
    """Two sets of words as one: H = sum_s w_s (H_s - log w_s), where w_s is the share of probability in set s."""
    lse_N = torch.logaddexp(one.lse_N, other.lse_N)
    log_share_N, other_log_share_N = one.lse_N - lse_N, other.lse_N - lse_N
    entropy_N = log_share_N.exp() * (one.entropy_N - log_share_N)
    entropy_N += other_log_share_N.exp() * (other.entropy_N - other_log_share_N)
    return SliceStats(lse_N, entropy_N)


def logp_gradient(
    logit_NC: Tensor, lse_N: Tensor, grad_N: Tensor, target_N: Tensor, temperature: float, dtype: torch.dtype
) -> Tensor:
    """grad * d logp / d logit = grad * (onehot(target) - p) / temperature. Uses up `logit_NC`.

    Targets are counted from the start of the slice: one outside [0, C) is not in it.
    """
    scale_N = (grad_N / temperature).to(logit_NC.dtype)
    if _has_triton(logit_NC):
        from egpo.token_stats.kernels import fused_logp_gradient

        return fused_logp_gradient(logit_NC, lse_N, scale_N, target_N, temperature, dtype)
    if suits(logit_NC) and dtype == torch.float32:
        scale_N, target_N = scale_N.contiguous(), target_N.contiguous()
        tensors = map(address, (logit_NC, lse_N, scale_N))
        kernels().logp_gradient(*tensors, target_N.data_ptr(), *logit_NC.shape, 1 / temperature)
        return logit_NC
    grad_NC = logit_NC.div_(temperature).sub_(lse_N.unsqueeze(1)).exp_().mul_(-scale_N.unsqueeze(1))
    here_N = (target_N >= 0) & (target_N < grad_NC.shape[1])
    index_N1 = target_N.clamp(0, grad_NC.shape[1] - 1).unsqueeze(1)
    return grad_NC.scatter_add_(1, index_N1, scale_N.where(here_N, 0.0).unsqueeze(1)).to(dtype)


def _has_triton(logit_NC: Tensor) -> bool:
    return logit_NC.is_cuda and logit_NC.dtype == torch.float32 and _triton_is_installed()


@cache
def _triton_is_installed() -> bool:
    return find_spec("triton") is not None
