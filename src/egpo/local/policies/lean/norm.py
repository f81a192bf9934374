"""Root-mean-square norm with its gradient in closed form: autograd's own chain takes six times as long on a CPU."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from egpo.native.library import address, kernels, suits


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """weight * x / sqrt(mean(x^2) + eps) over the last axis, the root in float32 whatever the dtype."""
    if suits(x, weight_D):
        normed: Tensor = _NativeRmsNorm.apply(x, weight_D, eps)  # type: ignore[no-untyped-call]
    elif torch.is_grad_enabled():
        normed = _RmsNorm.apply(x, weight_D, eps)  # type: ignore[no-untyped-call]
    else:
        normed = _unit(x, _inverse_root(x, eps)).mul_(weight_D)
    return normed


class _NativeRmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        x = x.contiguous()
        out, inverse_root = torch.empty_like(x), x.new_empty(x.shape[:-1])
        tensors = map(address, (x, weight_D, out, inverse_root))
        kernels().rms_norm(*tensors, inverse_root.numel(), len(weight_D), eps)
        ctx.save_for_backward(x, weight_D, inverse_root)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight_D, inverse_root = ctx.saved_tensors
        grad, x_grad, weight_grad = grad.contiguous(), torch.empty_like(x), torch.empty_like(weight_D)
        tensors = map(address, (x, weight_D, inverse_root, grad, x_grad, weight_grad))
        kernels().rms_norm_back(*tensors, inverse_root.numel(), len(weight_D))
        return x_grad, weight_grad, None


def _inverse_root(x: Tensor, eps: float) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    root: Tensor = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return root.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def _unit(x: Tensor, inverse_root: Tensor) -> Tensor:
    return (x * inverse_root).to(x.dtype)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        inverse_root = _inverse_root(x, eps)
        unit = _unit(x, inverse_root)
        ctx.save_for_backward(unit, weight_D, inverse_root)
        return unit * weight_D

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        """With u = x / root: grad_w = sum g u, and grad_x = (g w - u mean(g w u)) / root."""
        unit, weight_D, inverse_root = ctx.saved_tensors
        wide_D = weight_D.to(inverse_root.dtype)
        along = (grad * unit).to(inverse_root.dtype)
        mean = (along @ wide_D).div_(len(wide_D)).unsqueeze(-1)
        x_grad = (grad * wide_D).addcmul_(unit.to(inverse_root.dtype), mean, value=-1).mul_(inverse_root)
        weight_grad = along.flatten(0, -2).sum(0)
        return x_grad.to(grad.dtype), weight_grad.to(weight_D.dtype), None
