"""silu(gate) * up, from one tensor that holds both. N tokens, F inner width."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

_BLOCK = 1024


@triton.jit
def _forward_kernel(gate_up, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    place = gate_up + row * 2 * width + column
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(place + width, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _backward_kernel(grad, gate_up, gate_up_grad, width, BLOCK: tl.constexpr):
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
    """(N, F): the gate's half comes first."""
    return _SwiGlu.apply(gate_up_N2F)  # type: ignore[no-untyped-call]


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up_N2F: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up_N2F)
        rows, width = gate_up_N2F.shape[0], gate_up_N2F.shape[1] // 2
        out_NF = gate_up_N2F.new_empty(rows, width)
        _forward_kernel[(rows, triton.cdiv(width, _BLOCK))](gate_up_N2F, out_NF, width, BLOCK=_BLOCK)
        return out_NF

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NF: Tensor) -> Any:
        (gate_up_N2F,) = ctx.saved_tensors
        rows, width = grad_NF.shape
        gate_up_grad = torch.empty_like(gate_up_N2F)
        _backward_kernel[(rows, triton.cdiv(width, _BLOCK))](
            grad_NF.contiguous(), gate_up_N2F, gate_up_grad, width, BLOCK=_BLOCK
        )
        return gate_up_grad
