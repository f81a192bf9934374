"""Keys and values beside those of their prompt, and the gradient back: one read of it, in an order that never changes.

N tokens of the pack, M keys, W numbers of a token.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from egpo.local.cuda.spans import Spans


@triton.jit
def _sum_kernel(grad, order, first, out, width, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    total = tl.zeros([BLOCK], tl.float32)
    for index in range(tl.load(first + token), tl.load(first + token + 1)):
        total += tl.load(grad + tl.load(order + index) * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * width + column, total.to(out.dtype.element_ty), mask=inside)


def gather_keys(tensor_NKd: Tensor, spans: Spans) -> Tensor:
    """(M, K, d): the keys of every sequence in turn."""
    return _Gather.apply(tensor_NKd, spans)  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor_NKd: Tensor, spans: Spans) -> Tensor:
        ctx.spans, ctx.num_tokens = spans, len(tensor_NKd)
        return tensor_NKd.index_select(0, spans.source_M)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MKd: Tensor) -> Any:
        grad_MKd = grad_MKd.contiguous()
        out_NKd = grad_MKd.new_empty(ctx.num_tokens, *grad_MKd.shape[1:])
        width = out_NKd[0].numel()
        _sum_kernel[(ctx.num_tokens,)](
            grad_MKd, ctx.spans.order_M, ctx.spans.first_N1, out_NKd, width, BLOCK=triton.next_power_of_2(width)
        )
        return out_NKd, None
