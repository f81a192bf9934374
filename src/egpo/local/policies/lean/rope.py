"""Rotary positions. A rotation's gradient is the rotation back, so that nothing of the input is kept for it."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def rotate(x_NHd: Tensor, cos_Nd: Tensor, sin_Nd: Tensor) -> Tensor:
    """The pair (x[i], x[i + d/2]) of every head turned by its token's angle; both halves of cos and sin are alike."""
    if not torch.is_grad_enabled():
        return _turned(x_NHd, cos_Nd, sin_Nd, 1)
    rotated: Tensor = _Rotate.apply(x_NHd, cos_Nd, sin_Nd)  # type: ignore[no-untyped-call]
    return rotated


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NHd: Tensor, cos_Nd: Tensor, sin_Nd: Tensor) -> Tensor:
        ctx.save_for_backward(cos_Nd, sin_Nd)
        return _turned(x_NHd, cos_Nd, sin_Nd, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NHd: Tensor) -> Any:
        cos_Nd, sin_Nd = ctx.saved_tensors
        return _turned(grad_NHd, cos_Nd, sin_Nd, -1), None, None


def _turned(x_NHd: Tensor, cos_Nd: Tensor, sin_Nd: Tensor, direction: int) -> Tensor:
    half = x_NHd.shape[-1] // 2
    sin_N1h = sin_Nd[:, None, :half]
    out_NHd = x_NHd * cos_Nd[:, None]
    out_NHd[..., :half].addcmul_(x_NHd[..., half:], sin_N1h, value=-direction)
    out_NHd[..., half:].addcmul_(x_NHd[..., :half], sin_N1h, value=direction)
    return out_NHd
