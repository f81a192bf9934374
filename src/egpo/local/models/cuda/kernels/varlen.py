"""Copy keys or values of a pack to the sequences of variable-length attention, and sum the gradient back.

Tensor suffixes: N tokens of the pack, M keys of all sequences, K heads, d the width of a head.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from egpo.local.models.packs import VarlenLayout


@triton.jit
def _sum_kernel(grad, order, first, out, width, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    total = tl.zeros([BLOCK], tl.float32)
    for index in range(tl.load(first + token), tl.load(first + token + 1)):
        total += tl.load(grad + tl.load(order + index) * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * width + column, total.to(out.dtype.element_ty), mask=inside)


def gather_keys(tensor_NKd: Tensor, layout: VarlenLayout) -> Tensor:
    """Copy keys or values of a pack to every sequence in turn (M, K, d). The gradient is summed in a fixed order."""
    return _Gather.apply(tensor_NKd, layout)  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor_NKd: Tensor, layout: VarlenLayout) -> Tensor:
        ctx.layout, ctx.num_tokens = layout, len(tensor_NKd)
        return tensor_NKd.index_select(0, layout.source_M)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MKd: Tensor) -> Any:
        grad_MKd = grad_MKd.contiguous()
        out_NKd = grad_MKd.new_empty(ctx.num_tokens, *grad_MKd.shape[1:])
        width = out_NKd[0].numel()
        _sum_kernel[(ctx.num_tokens,)](
            grad_MKd, ctx.layout.order_M, ctx.layout.first_N1, out_NKd, width, BLOCK=triton.next_power_of_2(width)
        )
        return out_NKd, None
