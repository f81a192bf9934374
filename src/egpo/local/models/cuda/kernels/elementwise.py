"""Elementwise operations of a layer, each in one pass over memory, with gradients: residual sum and RMS norm, SwiGLU.

Tensor suffixes: N tokens, D hidden, F inner width of the MLP.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

_PARTS = 512
"""Number of partial sums of the weight's gradient: a few programs for each multiprocessor."""


@triton.jit
def _norm_forward_kernel(x, update, weight, out, normed, root, width, eps, ADDS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x + row * width + column, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        value += tl.load(update + row * width + column, mask=inside, other=0.0).to(tl.float32)
        # The norm is taken of the sum as it is stored, rounded.
        value = value.to(out.dtype.element_ty)
        tl.store(out + row * width + column, value, mask=inside)
        value = value.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    unit = (value * inverse).to(normed.dtype.element_ty).to(tl.float32)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row * width + column, (unit * w).to(normed.dtype.element_ty), mask=inside)
    tl.store(root + row, inverse)


@triton.jit
def _norm_backward_kernel(
    normed_grad,
    sum_grad,
    value,
    weight,
    root,
    grad,
    weight_parts,
    rows,
    width,
    JOINS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    part = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < width
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    weight_sum = tl.zeros([BLOCK], tl.float32)
    for row in range(part, rows, tl.num_programs(0)):
        place = tl.cast(row, tl.int64) * width + column
        g = tl.load(normed_grad + place, mask=inside, other=0.0).to(tl.float32)
        inverse = tl.load(root + row)
        unit = tl.load(value + place, mask=inside, other=0.0).to(tl.float32) * inverse
        weight_sum += g * unit
        g = g * w
        x_grad = (g - unit * (tl.sum(g * unit, 0) / width)) * inverse
        if JOINS:
            x_grad += tl.load(sum_grad + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(grad + place, x_grad.to(grad.dtype.element_ty), mask=inside)
    tl.store(weight_parts + part * width + column, weight_sum, mask=inside)


def add_rms_norm(x_ND: Tensor, update_ND: Tensor | None, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return h = x + update, and weight * h / sqrt(mean(h^2) + eps). Without an update, h is x."""
    if update_ND is None:
        return x_ND, _Norm.apply(x_ND, weight_D, eps)  # type: ignore[no-untyped-call]
    return _AddNorm.apply(x_ND, update_ND, weight_D, eps)  # type: ignore[no-untyped-call]


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        value_ND, normed_ND, root_N = _forward(x_ND, None, weight_D, eps)
        ctx.save_for_backward(value_ND, weight_D, root_N)
        return normed_ND

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, normed_grad: Tensor) -> Any:
        grad_ND, weight_grad_D = _backward(normed_grad, None, *ctx.saved_tensors)
        return grad_ND, weight_grad_D, None


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, update_ND: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        value_ND, normed_ND, root_N = _forward(x_ND, update_ND, weight_D, eps)
        ctx.save_for_backward(value_ND, weight_D, root_N)
        ctx.set_materialize_grads(False)
        return value_ND, normed_ND

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, sum_grad: Tensor | None, normed_grad: Tensor) -> Any:
        grad_ND, weight_grad_D = _backward(normed_grad, sum_grad, *ctx.saved_tensors)
        return grad_ND, grad_ND, weight_grad_D, None


def _forward(x_ND: Tensor, update_ND: Tensor | None, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    rows, width = x_ND.shape
    x_ND = x_ND.contiguous()
    update = x_ND if update_ND is None else update_ND.contiguous()
    value_ND = x_ND if update_ND is None else torch.empty_like(x_ND)
    normed_ND = torch.empty_like(x_ND)
    root_N = torch.empty(rows, device=x_ND.device)
    block = triton.next_power_of_2(width)
    _norm_forward_kernel[(rows,)](
        x_ND, update, weight_D, value_ND, normed_ND, root_N, width, eps, ADDS=update_ND is not None, BLOCK=block,
        num_warps=_warps(block),
    )  # fmt: skip
    return value_ND, normed_ND, root_N


def _backward(
    normed_grad: Tensor, sum_grad: Tensor | None, value_ND: Tensor, weight_D: Tensor, root_N: Tensor
) -> tuple[Tensor, Tensor]:
    rows, width = value_ND.shape
    normed_grad = normed_grad.contiguous()
    joined = normed_grad if sum_grad is None else sum_grad.contiguous()
    grad_ND = torch.empty_like(value_ND)
    parts = min(rows, _PARTS)
    weight_parts = torch.empty(parts, width, device=value_ND.device)
    block = triton.next_power_of_2(width)
    _norm_backward_kernel[(parts,)](
        normed_grad, joined, value_ND, weight_D, root_N, grad_ND, weight_parts, rows, width,
        JOINS=sum_grad is not None, BLOCK=block, num_warps=_warps(block),
    )  # fmt: skip
    return grad_ND, weight_parts.sum(0).to(weight_D.dtype)


def _warps(block: int) -> int:
    return max(1, min(16, block // 256))


_BLOCK = 1024


@triton.jit
def _swiglu_forward_kernel(gate_up, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    place = gate_up + row * 2 * width + column
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(place + width, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _swiglu_backward_kernel(grad, gate_up, gate_up_grad, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    place = row * 2 * width + column
    g = tl.load(grad + row * width + column, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_up + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + place + width, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    gate_grad = g * up * share * (1 + gate * (1 - share))
    tl.store(gate_up_grad + place, gate_grad.to(gate_up_grad.dtype.element_ty), mask=inside)
    tl.store(gate_up_grad + place + width, (g * gate * share).to(gate_up_grad.dtype.element_ty), mask=inside)


def swiglu(gate_up_N2F: Tensor) -> Tensor:
    """Return silu(gate) * up (N, F), from a tensor that holds the gate in its first half."""
    return _SwiGlu.apply(gate_up_N2F)  # type: ignore[no-untyped-call]


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up_N2F: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up_N2F)
        rows, width = gate_up_N2F.shape[0], gate_up_N2F.shape[1] // 2
        out_NF = gate_up_N2F.new_empty(rows, width)
        _swiglu_forward_kernel[(rows, triton.cdiv(width, _BLOCK))](gate_up_N2F, out_NF, width, BLOCK=_BLOCK)
        return out_NF

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NF: Tensor) -> Any:
        (gate_up_N2F,) = ctx.saved_tensors
        rows, width = grad_NF.shape
        gate_up_grad = torch.empty_like(gate_up_N2F)
        _swiglu_backward_kernel[(rows, triton.cdiv(width, _BLOCK))](
            grad_NF.contiguous(), gate_up_N2F, gate_up_grad, width, BLOCK=_BLOCK
        )
        return gate_up_grad
