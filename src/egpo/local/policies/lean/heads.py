"""What queries and keys go through before attention: a norm, where the model has one, and their rotary positions.

N tokens, H heads, d their width.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from egpo.local.policies.lean.norm import rms_norm
from egpo.local.policies.lean.rope import rotate
from egpo.native.library import address, kernels, suits


class Angles(NamedTuple):
    """Of every token; both halves of a row are alike."""

    cos_Nd: Tensor
    sin_Nd: Tensor


def placed(x_NHd: Tensor, norm: Any, angles: Angles) -> Tensor:
    """Every head normed by `norm`, which may be None, then turned by its token's angles."""
    if suits(x_NHd, *angles):
        weight_d, eps = (None, 0.0) if norm is None else (norm.weight, norm.variance_epsilon)
        out: Tensor = _NativeHeads.apply(x_NHd, weight_d, *angles, eps)  # type: ignore[no-untyped-call]
        return out
    return rotate(x_NHd if norm is None else rms_norm(x_NHd, norm.weight, norm.variance_epsilon), *angles)


class _NativeHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NHd: Tensor, weight_d: Tensor | None, cos_Nd: Tensor, sin_Nd: Tensor, eps: float) -> Tensor:
        x_NHd = x_NHd.contiguous()
        out_NHd, inverse_NH = torch.empty_like(x_NHd), x_NHd.new_empty(x_NHd.shape[:2])
        tensors = map(_address, (x_NHd, weight_d, cos_Nd, sin_Nd, out_NHd, inverse_NH))
        kernels().heads(*tensors, *x_NHd.shape, eps)
        ctx.save_for_backward(x_NHd, weight_d, cos_Nd, sin_Nd, inverse_NH)
        return out_NHd

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NHd: Tensor) -> Any:
        x_NHd, weight_d, cos_Nd, sin_Nd, inverse_NH = ctx.saved_tensors
        x_grad, weight_grad = torch.empty_like(x_NHd), None if weight_d is None else torch.empty_like(weight_d)
        known = (x_NHd, weight_d, cos_Nd, sin_Nd, inverse_NH, grad_NHd.contiguous())
        kernels().heads_back(*map(_address, (*known, x_grad, weight_grad)), *x_NHd.shape)
        return x_grad, weight_grad, None, None, None


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else address(tensor)
