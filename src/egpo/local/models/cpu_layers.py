"""Root-mean-square norm with its gradient in closed form: autograd's own chain takes six times as long on a CPU.

Rotary positions. A rotation's gradient is the rotation back, so that nothing of the input is kept for it.

The gated activation of an MLP: silu(gate) * up, with both gradients in one pass.

What queries and keys go through before attention: a norm, where the model has one, and their rotary positions.

N tokens, H heads, d their width.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import silu

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


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    if not suits(gate, up):
        return silu(gate) * up
    out: Tensor = _NativeSwiglu.apply(gate, up)  # type: ignore[no-untyped-call]
    return out


class _NativeSwiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        out = torch.empty_like(gate)
        kernels().swiglu(*map(address, (gate, up, out)), gate.numel())
        ctx.save_for_backward(gate, up)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        gate, up = ctx.saved_tensors
        grad, gate_grad, up_grad = grad.contiguous(), torch.empty_like(gate), torch.empty_like(up)
        kernels().swiglu_back(*map(address, (gate, up, grad, gate_grad, up_grad)), gate.numel())
        return gate_grad, up_grad


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
