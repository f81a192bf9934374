"""Log-probability and entropy of tokens, with the vocabulary processed in slices.

Forward merges the softmax of each slice into the result so far, and saves one number per token. Backward computes each
slice of logits again. This costs four matrix products instead of three. With a vocabulary of 150k words, the full
logits of 8,192 tokens would take 5 GB in float32, and the softmax and the gradient another 5 GB each. Each slice is
processed by torch, or if possible by a kernel that reads it once (Triton on CUDA, C on CPUs).

Tensor suffixes: N tokens, V vocabulary, D hidden, C words in a slice.
"""

import math
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from egpo.errors import InputError
from egpo.native.library import address, kernels, suits

# On a GPU matrix products are faster on wide slices; on a CPU a slice should not be much larger than the cache.
CHUNK_BYTES = {"cuda": 2**28, "cpu": 2**25}


def token_stats(
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    *,
    chunk_bytes: int | None = None,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return for each token, under p = softmax(hidden @ head_weight.T / temperature), in float32:

        logp     log p[target]                 differentiable in hidden and head_weight
        entropy  -sum_v p[v] log p[v], nats    detached, unless `entropy_gradient` is set

    EGPO uses the entropy in the advantage, where it is a constant; an entropy term of the loss needs its gradient.

    `hidden` is (..., D), `head_weight` (V, D), `targets` (...). Sums are in float32 for any dtype of the weights:
    bf16 logits would quantise the entropy. `chunk_bytes` bounds one slice of logits.
    """
    _check(hidden, head_weight, targets, temperature)
    hidden_ND, target_N = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1).long()
    chunk_bytes = chunk_bytes or CHUNK_BYTES.get(hidden.device.type, CHUNK_BYTES["cpu"])
    words = _even(max(1, chunk_bytes // (4 * max(1, len(hidden_ND)))))
    apply: Any = _TokenStats.apply
    # Autocast would round the logits to half precision in forward, but not in backward.
    with torch.autocast(hidden.device.type, enabled=False):
        logp_N, entropy_N = apply(hidden_ND, head_weight, target_N, float(temperature), words, entropy_gradient)
    return logp_N.view(targets.shape), entropy_N.view(targets.shape)


class _TokenStats(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        target_N: Tensor,
        temperature: float,
        words: int,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        chosen_N = hidden_ND.new_zeros(len(hidden_ND), dtype=_wide(hidden_ND))
        stats = None
        for start in range(0, len(weight_VD), words):
            logit_NC = _matmul_wide(hidden_ND, weight_VD[start : start + words].t())
            _take_targets(chosen_N, logit_NC, target_N - start)
            here = slice_stats(logit_NC, temperature)
            stats = here if stats is None else merge(stats, here)
        assert stats is not None  # the vocabulary is not empty
        ctx.temperature, ctx.words, ctx.entropy_gradient = temperature, words, entropy_gradient
        if entropy_gradient:
            ctx.save_for_backward(hidden_ND, weight_VD, target_N, stats.lse_N, stats.entropy_N)
        else:
            ctx.save_for_backward(hidden_ND, weight_VD, target_N, stats.lse_N)
            ctx.mark_non_differentiable(stats.entropy_N)
        return chosen_N / temperature - stats.lse_N, stats.entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor, entropy_grad_N: Tensor) -> Any:
        hidden_ND, weight_VD, target_N, lse_N, *rest = ctx.saved_tensors
        hidden_grad = torch.zeros_like(hidden_ND, dtype=_wide(hidden_ND)) if ctx.needs_input_grad[0] else None
        weight_grad = torch.empty_like(weight_VD) if ctx.needs_input_grad[1] else None
        for start in range(0, len(weight_VD), ctx.words):
            weight_CD = weight_VD[start : start + ctx.words]
            logit_NC = _matmul_wide(hidden_ND, weight_CD.t())
            if ctx.entropy_gradient:
                upstream = Upstream(lse_N, rest[0], grad_N, entropy_grad_N)
                grad_NC = stats_gradient(logit_NC, upstream, target_N - start, ctx.temperature, weight_VD.dtype)
            else:
                grad_NC = logp_gradient(logit_NC, lse_N, grad_N, target_N - start, ctx.temperature, weight_VD.dtype)
            if hidden_grad is not None:
                hidden_grad += _matmul_wide(grad_NC, weight_CD)
            if weight_grad is not None:
                torch.mm(grad_NC.t(), hidden_ND, out=weight_grad[start : start + ctx.words])
        hidden_grad = None if hidden_grad is None else hidden_grad.to(hidden_ND.dtype)
        return hidden_grad, weight_grad, None, None, None, None


def _even(words: int) -> int:
    """Round down to a multiple of 256 if possible: rows of odd length use the slow matrix products of a GPU."""
    return words - words % 256 if words > 256 else words


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _matmul_wide(a: Tensor, b: Tensor) -> Tensor:
    """Return a product in float32, also for inputs in half precision. (float64 stays: gradient checks need it.)"""
    if a.dtype == _wide(a):
        return a @ b
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def _take_targets(chosen_N: Tensor, logit_NC: Tensor, index_N: Tensor) -> None:
    """Copy the logit of the target, for the tokens whose target is in this slice."""
    here_N = (index_N >= 0) & (index_N < logit_NC.shape[1])
    picked_N = logit_NC.gather(1, index_N.clamp(0, logit_NC.shape[1] - 1).unsqueeze(1)).squeeze(1)
    torch.where(here_N, picked_N, chosen_N, out=chosen_N)


@dataclass(frozen=True)
class SliceStats:
    """The log-sum-exp of logits / temperature, and the entropy of their softmax, over one slice of the vocabulary."""

    lse_N: Tensor
    entropy_N: Tensor


def slice_stats(logit_NC: Tensor, temperature: float) -> SliceStats:
    """Return the statistics of one slice of logits. Overwrites `logit_NC`."""
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
    """Merge the statistics of two slices: H = sum_s w_s (H_s - log w_s), where w_s is the probability of slice s."""
    lse_N = torch.logaddexp(one.lse_N, other.lse_N)
    log_share_N, other_log_share_N = one.lse_N - lse_N, other.lse_N - lse_N
    entropy_N = log_share_N.exp() * (one.entropy_N - log_share_N)
    entropy_N += other_log_share_N.exp() * (other.entropy_N - other_log_share_N)
    return SliceStats(lse_N, entropy_N)


def logp_gradient(
    logit_NC: Tensor, lse_N: Tensor, grad_N: Tensor, target_N: Tensor, temperature: float, dtype: torch.dtype
) -> Tensor:
    """Return grad * d logp / d logit = grad * (onehot(target) - p) / temperature. Overwrites `logit_NC`.

    Targets are relative to the start of the slice: a target outside [0, C) is in another slice.
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
    return _at_targets(grad_NC, target_N, scale_N).to(dtype)


def _at_targets(grad_NC: Tensor, target_N: Tensor, value_N: Tensor) -> Tensor:
    """Add each token's value at its target, if the target is in this slice. Overwrites `grad_NC`."""
    here_N = (target_N >= 0) & (target_N < grad_NC.shape[1])
    index_N1 = target_N.clamp(0, grad_NC.shape[1] - 1).unsqueeze(1)
    return grad_NC.scatter_add_(1, index_N1, value_N.where(here_N, 0.0).unsqueeze(1))


@dataclass(frozen=True)
class Upstream:
    """What the gradient of a slice depends on, besides its logits: statistics over the whole vocabulary, and the
    gradients of the loss by logp and by entropy."""

    lse_N: Tensor
    entropy_N: Tensor
    logp_grad_N: Tensor
    entropy_grad_N: Tensor


def stats_gradient(
    logit_NC: Tensor, upstream: Upstream, target_N: Tensor, temperature: float, dtype: torch.dtype
) -> Tensor:
    """Return the gradient of a loss with terms in logp and in entropy H by one slice of logits. Overwrites `logit_NC`.

        (g (onehot(target) - p) - h p (log p + H)) / temperature      g = d loss / d logp, h = d loss / d H

    A word of probability 0 has no gradient.
    """
    g_N, h_N = ((grad_N / temperature).to(logit_NC.dtype) for grad_N in (upstream.logp_grad_N, upstream.entropy_grad_N))
    if _has_triton(logit_NC):
        from egpo.token_stats.kernels import fused_stats_gradient

        stats = (upstream.lse_N, upstream.entropy_N)
        return fused_stats_gradient(logit_NC, *stats, g_N, h_N, target_N, temperature, dtype)
    if suits(logit_NC) and dtype == torch.float32:
        rows = [part_N.contiguous() for part_N in (upstream.lse_N, upstream.entropy_N, g_N, h_N)]
        target_N = target_N.contiguous()
        tensors = map(address, (logit_NC, *rows))
        kernels().stats_gradient(*tensors, target_N.data_ptr(), *logit_NC.shape, 1 / temperature)
        return logit_NC
    logit_NC.div_(temperature).sub_(upstream.lse_N.unsqueeze(1))
    p_NC = logit_NC.exp()
    # 0 * -inf would be NaN.
    logit_NC.masked_fill_(p_NC == 0, 0.0)
    logit_NC.add_(upstream.entropy_N.unsqueeze(1)).mul_(h_N.unsqueeze(1)).add_(g_N.unsqueeze(1))
    return _at_targets(logit_NC.mul_(p_NC).neg_(), target_N, g_N).to(dtype)


def _has_triton(logit_NC: Tensor) -> bool:
    return logit_NC.is_cuda and logit_NC.dtype == torch.float32 and _triton_is_installed()


@cache
def _triton_is_installed() -> bool:
    return find_spec("triton") is not None


def _check(hidden: Tensor, head_weight: Tensor, targets: Tensor, temperature: float) -> None:
    if (
        hidden.shape[:-1] != targets.shape
        or head_weight.ndim != 2
        or hidden.shape[-1] != head_weight.shape[1]
        or not len(head_weight)
    ):
        raise InputError(
            f"the shapes do not match: hidden {tuple(hidden.shape)}, head_weight {tuple(head_weight.shape)}, "
            f"targets {tuple(targets.shape)}",
            where="token_stats",
            fix="the shapes must be (..., D), (V, D) and (...)",
        )
    if hidden.dtype != head_weight.dtype:
        raise InputError(
            f"the dtypes differ: hidden is {hidden.dtype} and head_weight {head_weight.dtype}",
            where="token_stats",
            fix="cast one of them; hidden.to(head_weight.dtype) is the cheapest",
        )
    if targets.is_floating_point():
        raise InputError(f"targets are {targets.dtype}", where="token_stats", fix="give token ids, which are integers")
    if not 0 < temperature < math.inf:
        raise InputError(f"temperature is {temperature}", where="token_stats", fix="it must be greater than 0")
    if targets.numel() and not (int(targets.min()) >= 0 and int(targets.max()) < len(head_weight)):
        raise InputError(
            f"targets range from {int(targets.min())} to {int(targets.max())}",
            where="token_stats",
            fix=f"token ids must be in [0, {len(head_weight)}): leave masked tokens out, or give them any such id",
        )
