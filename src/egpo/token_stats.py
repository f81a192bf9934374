"""Log-probability and exact entropy of tokens, straight from hidden states: the logits never stand whole in memory.

The vocabulary is walked in slices. Forward keeps a running softmax (as flash attention does over keys) and saves one
number per token; backward makes each slice of logits again. Four matrix products instead of three is the price; with
150k words the logits of 8,192 tokens would take 5 GB, several times over.
N tokens, V vocabulary, D hidden, C words in a slice.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from egpo.errors import InputError

CHUNK_BYTES = 2**26
"""How much memory one slice of float32 logits may take."""


def token_stats(
    hidden: Tensor, head_weight: Tensor, targets: Tensor, temperature: float = 1.0, *, chunk_bytes: int = CHUNK_BYTES
) -> tuple[Tensor, Tensor]:
    """For each token, under p = softmax(hidden @ head_weight.T / temperature), in float32:

        logp     log p[target]                 differentiable in hidden and head_weight
        entropy  -sum_v p[v] log p[v], nats    detached: EGPO rewards it, no loss term follows it

    `hidden` is (..., D), `head_weight` (V, D), `targets` (...). Sums run in float32 whatever the dtype of the weights:
    bf16 logits would quantise the entropy.
    """
    _check(hidden, head_weight, targets, temperature)
    hidden_ND, target_N = hidden.flatten(0, -2), targets.flatten().long()
    slice_words = max(1, chunk_bytes // (4 * max(1, len(hidden_ND))))
    # mypy: autograd.Function.apply is untyped
    logp_N, entropy_N = _TokenStats.apply(hidden_ND, head_weight, target_N, float(temperature), slice_words)  # type: ignore[no-untyped-call]
    return logp_N.view(targets.shape), entropy_N.view(targets.shape)


class _TokenStats(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, target_N: Tensor, temperature: float, size: int) -> Any:
        highest_N = hidden_ND.new_full((len(hidden_ND),), -math.inf, dtype=_wide(hidden_ND))
        sum_N, weighted_N, chosen_N = (torch.zeros_like(highest_N) for _ in range(3))
        for start in range(0, len(weight_VD), size):
            logit_NC = _logits(hidden_ND, weight_VD[start : start + size], temperature)
            _take_targets(chosen_N, logit_NC, target_N - start)
            before_N, highest_N = highest_N, torch.maximum(highest_N, logit_NC.amax(1))
            # sum_N is sum exp(l - m), weighted_N is sum exp(l - m) (l - m); a new maximum m rescales both.
            drop_N = (before_N - highest_N).nan_to_num(neginf=0.0)
            scale_N = (before_N - highest_N).exp()
            weighted_N = (weighted_N + drop_N * sum_N) * scale_N
            logit_NC.sub_(highest_N.unsqueeze(1))
            exp_NC = logit_NC.exp()
            sum_N = sum_N * scale_N + exp_NC.sum(1)
            weighted_N += exp_NC.mul_(logit_NC).sum(1)
        lse_N = highest_N + sum_N.log()
        ctx.save_for_backward(hidden_ND, weight_VD, target_N, lse_N)
        ctx.temperature, ctx.size = temperature, size
        entropy_N = sum_N.log() - weighted_N / sum_N
        ctx.mark_non_differentiable(entropy_N)
        return chosen_N - lse_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor, _: Any) -> Any:
        """d logp / d logit = onehot(target) - p, over the temperature."""
        hidden_ND, weight_VD, target_N, lse_N = ctx.saved_tensors
        hidden_grad = torch.zeros_like(hidden_ND, dtype=_wide(hidden_ND)) if ctx.needs_input_grad[0] else None
        weight_grad = torch.empty_like(weight_VD) if ctx.needs_input_grad[1] else None
        scale_N = grad_N / ctx.temperature
        for start in range(0, len(weight_VD), ctx.size):
            weight_CD = weight_VD[start : start + ctx.size]
            p_NC = _logits(hidden_ND, weight_CD, ctx.temperature).sub_(lse_N.unsqueeze(1)).exp_()
            grad_NC = p_NC.mul_(-scale_N.unsqueeze(1))
            _add_at_targets(grad_NC, scale_N, target_N - start)
            grad_NC = grad_NC.to(weight_VD.dtype)
            if hidden_grad is not None:
                hidden_grad += _matmul_wide(grad_NC, weight_CD)
            if weight_grad is not None:
                torch.mm(grad_NC.t(), hidden_ND, out=weight_grad[start : start + ctx.size])
        return hidden_grad if hidden_grad is None else hidden_grad.to(hidden_ND.dtype), weight_grad, None, None, None


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _logits(hidden_ND: Tensor, weight_CD: Tensor, temperature: float) -> Tensor:
    logit_NC = _matmul_wide(hidden_ND, weight_CD.t())
    return logit_NC if temperature == 1.0 else logit_NC.div_(temperature)


def _matmul_wide(a: Tensor, b: Tensor) -> Tensor:
    """A product in float32 even where the inputs are halves. (float64 stays: gradient checks need it.)"""
    if a.dtype == _wide(a):
        return a @ b
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def _take_targets(chosen_N: Tensor, logit_NC: Tensor, index_N: Tensor) -> None:
    """The target's logit, for the tokens whose target lies in this slice."""
    here_N = (index_N >= 0) & (index_N < logit_NC.shape[1])
    picked_N = logit_NC.gather(1, index_N.clamp(0, logit_NC.shape[1] - 1).unsqueeze(1)).squeeze(1)
    torch.where(here_N, picked_N, chosen_N, out=chosen_N)


def _add_at_targets(grad_NC: Tensor, scale_N: Tensor, index_N: Tensor) -> None:
    here_N = (index_N >= 0) & (index_N < grad_NC.shape[1])
    index_N1 = index_N.clamp(0, grad_NC.shape[1] - 1).unsqueeze(1)
    grad_NC.scatter_add_(1, index_N1, scale_N.where(here_N, 0.0).unsqueeze(1))


def _check(hidden: Tensor, head_weight: Tensor, targets: Tensor, temperature: float) -> None:
    if hidden.shape[:-1] != targets.shape or head_weight.ndim != 2 or hidden.shape[-1] != head_weight.shape[1]:
        raise InputError(
            f"hidden {tuple(hidden.shape)}, head_weight {tuple(head_weight.shape)}, targets {tuple(targets.shape)}",
            where="token_stats",
            fix="the shapes must be (..., D), (V, D) and (...)",
        )
    if hidden.dtype != head_weight.dtype:
        raise InputError(f"hidden is {hidden.dtype} and head_weight {head_weight.dtype}", where="token_stats")
    if not 0 < temperature < math.inf:
        raise InputError(f"temperature is {temperature}", where="token_stats", fix="it must be greater than 0")
    if targets.numel() and not (int(targets.min()) >= 0 and int(targets.max()) < len(head_weight)):
        raise InputError(
            f"targets reach from {int(targets.min())} to {int(targets.max())}",
            where="token_stats",
            fix=f"token ids lie in [0, {len(head_weight)}): leave masked tokens out, or give them any id",
        )
