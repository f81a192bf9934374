"""Attention over a pack as it lies, without rectangles: scores stand for one block of queries at a time.

N tokens, H heads of queries, K of keys and values, d their width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from egpo.local.policies.attention import PackLayout, attend_pack
from egpo.native.library import address, kernels, suits


def attend(query_NHd: Tensor, key_NKd: Tensor, value_NKd: Tensor, layout: PackLayout, scale: float) -> Tensor:
    """(N, H * d)."""
    if suits(query_NHd, key_NKd, value_NKd):
        out: Tensor = _NativeAttention.apply(query_NHd, key_NKd, value_NKd, layout, scale)  # type: ignore[no-untyped-call]
        return out.flatten(1)
    query, key, value = (tensor[None].transpose(1, 2) for tensor in (query_NHd, key_NKd, value_NKd))
    return attend_pack(query, key, value, layout, scale)[0].flatten(1)


class _NativeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query_NHd: Tensor, key_NKd: Tensor, value_NKd: Tensor, layout: PackLayout, scale: float
    ) -> Tensor:
        query_NHd, key_NKd, value_NKd = query_NHd.contiguous(), key_NKd.contiguous(), value_NKd.contiguous()
        out_NHd, log_total_NH = torch.empty_like(query_NHd), query_NHd.new_empty(query_NHd.shape[:2])
        tensors = map(address, (query_NHd, key_NKd, value_NKd, out_NHd, log_total_NH))
        kernels().attend_pack(*tensors, *_places(layout, query_NHd, key_NKd), scale)
        ctx.save_for_backward(query_NHd, key_NKd, value_NKd, log_total_NH)
        ctx.layout, ctx.scale = layout, scale
        return out_NHd

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NHd: Tensor) -> Any:
        query_NHd, key_NKd, value_NKd, log_total_NH = ctx.saved_tensors
        known = (query_NHd, key_NKd, value_NKd, log_total_NH, grad_NHd.contiguous())
        gradients = (torch.empty_like(query_NHd), torch.zeros_like(key_NKd), torch.zeros_like(value_NKd))
        tensors = map(address, (*known, *gradients))
        kernels().attend_pack_back(*tensors, *_places(ctx.layout, query_NHd, key_NKd), ctx.scale)
        return *gradients, None, None


def _places(layout: PackLayout, query_NHd: Tensor, key_NKd: Tensor) -> tuple[int, ...]:
    """As the kernels want them: parts, groups, and the sizes."""
    _, heads, width = query_NHd.shape
    parts, firsts = layout.parts.data_ptr(), layout.group_firsts.data_ptr()
    return parts, firsts, len(layout.groups), layout.longest, heads, key_NKd.shape[1], width
