"""A pack as attention over sequences of any length takes it: every prompt is a sequence, and so is every response,
whose keys are its prompt's and its own.

N tokens of the pack, M keys once every response has its prompt's beside its own.

Keys and values beside those of their prompt, and the gradient back: one read of it, in an order that never changes.

N tokens of the pack, M keys, W numbers of a token.
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from egpo.local.models.attention import PackLayout


@dataclass(frozen=True, eq=False)
class VarlenLayout:
    """`source_M`: the token of the pack that each key is. `order_M` lists the keys by that token, and those of token n
    begin at `first_N1[n]`. `query_starts` and `key_starts` bound the sequences, int32."""

    source_M: Tensor
    order_M: Tensor
    first_N1: Tensor
    query_starts: Tensor
    key_starts: Tensor
    longest_query: int
    longest_key: int

    @classmethod
    def of(cls, layout: PackLayout) -> "VarlenLayout":
        sources, queries, keys = [], [], []
        num_tokens = 0
        for group in layout.groups:
            prompt = torch.arange(group.start, group.responses_start)
            own = torch.split(torch.arange(group.responses_start, group.end), list(group.lengths))
            for length, tokens in ((group.prompt_length, None), *zip(group.lengths, own, strict=True)):
                if length:
                    sources += [prompt] if tokens is None else [prompt, tokens]
                    queries.append(length)
                    keys.append(length + (0 if tokens is None else group.prompt_length))
            num_tokens = group.end
        source_M = torch.cat(sources).to(layout.device)
        ordered, order_M = source_M.sort(stable=True)
        bounds = torch.arange(num_tokens + 1, device=layout.device)
        return cls(
            source_M=source_M,
            order_M=order_M,
            first_N1=torch.searchsorted(ordered, bounds),
            query_starts=_starts(queries, layout.device),
            key_starts=_starts(keys, layout.device),
            longest_query=max(queries),
            longest_key=max(keys),
        )


def _starts(lengths: list[int], device: torch.device) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


@triton.jit
def _sum_kernel(grad, order, first, out, width, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    total = tl.zeros([BLOCK], tl.float32)
    for index in range(tl.load(first + token), tl.load(first + token + 1)):
        total += tl.load(grad + tl.load(order + index) * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * width + column, total.to(out.dtype.element_ty), mask=inside)


def gather_keys(tensor_NKd: Tensor, spans: VarlenLayout) -> Tensor:
    """(M, K, d): the keys of every sequence in turn."""
    return _Gather.apply(tensor_NKd, spans)  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor_NKd: Tensor, spans: VarlenLayout) -> Tensor:
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
