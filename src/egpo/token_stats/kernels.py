"""Triton kernels for one slice of logits on a GPU. Each reads the slice once; torch's own operations read it six times.

The forward kernel runs one Triton program per token; the backward kernel runs one per token and block of the
vocabulary. In the names of tensors, N is the number of tokens and C the number of vocabulary entries in the slice.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
# Below every logit, and finite: the running sums start at 0 and 0 * -inf would be NaN.
LOWEST = tl.constexpr(-1e30)


@triton.jit
def _stats_kernel(logit, lse, entropy, num_words, inverse_temperature, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    highest = LOWEST
    total = 0.0
    weighted = 0.0
    for start in range(0, num_words, BLOCK):
        word = start + tl.arange(0, BLOCK)
        inside = word < num_words
        x = tl.load(logit + row * num_words + word, mask=inside, other=LOWEST) * inverse_temperature
        x = tl.where(inside, x, LOWEST)
        higher = tl.maximum(highest, tl.max(x, 0))
        # total is sum exp(x - m), weighted is sum exp(x - m) (x - m); a new maximum m rescales both.
        drop = highest - higher
        scale = tl.exp(drop)
        shifted = x - higher
        exp = tl.where(inside, tl.exp(shifted), 0.0)
        weighted = (weighted + drop * total) * scale + tl.sum(tl.where(inside, exp * shifted, 0.0), 0)
        total = total * scale + tl.sum(exp, 0)
        highest = higher
    tl.store(lse + row, highest + tl.log(total))
    tl.store(entropy + row, tl.log(total) - weighted / total)


@triton.jit
def _gradient_kernel(logit, out, lse, scale, target, num_words, inverse_temperature, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = word < num_words
    x = tl.load(logit + row * num_words + word, mask=inside, other=0.0) * inverse_temperature
    p = tl.exp(x - tl.load(lse + row))
    chosen = tl.where(word == tl.load(target + row), 1.0, 0.0)
    grad = tl.load(scale + row) * (chosen - p)
    tl.store(out + row * num_words + word, grad.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _stats_gradient_kernel(
    logit, out, lse, entropy, scale, entropy_scale, target, num_words, inverse_temperature, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = word < num_words
    x = tl.load(logit + row * num_words + word, mask=inside, other=0.0) * inverse_temperature - tl.load(lse + row)
    p = tl.exp(x)
    g = tl.load(scale + row)
    # A word of probability 0 adds nothing, though its logit may be minus infinity.
    rise = tl.where(p == 0.0, 0.0, x + tl.load(entropy + row))
    chosen = tl.where(word == tl.load(target + row), 1.0, 0.0)
    grad = g * (chosen - p) - tl.load(entropy_scale + row) * p * rise
    tl.store(out + row * num_words + word, grad.to(out.dtype.element_ty), mask=inside)


def fused_slice_stats(logit_NC: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return for each token the log-sum-exp of logits / temperature, and the entropy of their softmax."""
    num_tokens, num_words = logit_NC.shape
    lse_N, entropy_N = (torch.empty(num_tokens, device=logit_NC.device) for _ in range(2))
    if num_tokens:
        _stats_kernel[(num_tokens,)](logit_NC, lse_N, entropy_N, num_words, 1 / temperature, BLOCK=_block(num_words))
    return lse_N, entropy_N


def fused_logp_gradient(
    logit_NC: Tensor, lse_N: Tensor, scale_N: Tensor, target_N: Tensor, temperature: float, dtype: torch.dtype
) -> Tensor:
    """Return scale * (onehot(target) - p) in `dtype`. The logits are overwritten if they have this dtype."""
    num_tokens, num_words = logit_NC.shape
    grad_NC = logit_NC if dtype == logit_NC.dtype else torch.empty_like(logit_NC, dtype=dtype)
    block = _block(num_words)
    if num_tokens:
        grid = (num_tokens, triton.cdiv(num_words, block))
        _gradient_kernel[grid](
            logit_NC, grad_NC, lse_N, scale_N, target_N, num_words, 1 / temperature, BLOCK=block
        )  # fmt: skip
    return grad_NC


def fused_stats_gradient(
    logit_NC: Tensor,
    lse_N: Tensor,
    entropy_N: Tensor,
    scale_N: Tensor,
    entropy_scale_N: Tensor,
    target_N: Tensor,
    temperature: float,
    dtype: torch.dtype,
) -> Tensor:
    """Return scale * (onehot(target) - p) - entropy_scale * p (log p + H) in `dtype`, where H is the entropy.

    The logits are overwritten if they have this dtype.
    """
    num_tokens, num_words = logit_NC.shape
    grad_NC = logit_NC if dtype == logit_NC.dtype else torch.empty_like(logit_NC, dtype=dtype)
    block = _block(num_words)
    if num_tokens:
        grid = (num_tokens, triton.cdiv(num_words, block))
        rows = (part_N.contiguous() for part_N in (lse_N, entropy_N, scale_N, entropy_scale_N, target_N))
        _stats_gradient_kernel[grid](logit_NC, grad_NC, *rows, num_words, 1 / temperature, BLOCK=block)
    return grad_NC


def _block(num_words: int) -> int:
    return min(BLOCK, max(16, triton.next_power_of_2(num_words)))
