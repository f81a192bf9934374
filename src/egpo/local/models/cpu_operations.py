"""The operations of a decoder layer on a CPU, each with its gradient: a C kernel where it can run, else torch.

Tensor suffixes: N tokens, D hidden, I inputs and O outputs of a projection, H heads of queries, K heads of keys and of
values, d the width of a head. In the order of a layer: RMS norm, projections, norm and rotation of heads, attention
over a pack, gated activation.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import Linear
from torch.nn.functional import silu

from egpo.local.models.attention import attend_pack
from egpo.local.models.packs import PackLayout
from egpo.native.library import address, kernels, suits


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Return weight * x / sqrt(mean(x^2) + eps) over the last axis, with the root in float32 for any dtype.

    The gradient is in closed form: through autograd's own operations it takes six times as long on a CPU.
    """
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
        """Return the gradients: with u = x / root, grad_w = sum g u, and grad_x = (g w - u mean(g w u)) / root."""
        unit, weight_D, inverse_root = ctx.saved_tensors
        wide_D = weight_D.to(inverse_root.dtype)
        along = (grad * unit).to(inverse_root.dtype)
        mean = (along @ wide_D).div_(len(wide_D)).unsqueeze(-1)
        x_grad = (grad * wide_D).addcmul_(unit.to(inverse_root.dtype), mean, value=-1).mul_(inverse_root)
        weight_grad = along.flatten(0, -2).sum(0)
        return x_grad.to(grad.dtype), weight_grad.to(weight_D.dtype), None


def projections(x_NI: Tensor, layers: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Return the output of each layer for the same input. The backward pass sums the input's gradient in place."""
    if not _can_multiply(x_NI, layers):
        return tuple(layer(x_NI) for layer in layers)
    weights, biases = (layer.weight for layer in layers), (layer.bias for layer in layers)
    outputs: tuple[Tensor, ...] = _Projections.apply(x_NI, *weights, *biases)  # type: ignore[no-untyped-call]
    return outputs


def add_projection(onto_NO: Tensor, x_NI: Tensor, layer: Any) -> Tensor:
    """Return onto + layer(x), in one pass over the output if the C kernel is available."""
    if not _can_multiply(x_NI, (layer,)) or layer.bias is not None:
        update_NO: Tensor = layer(x_NI)
        return onto_NO + update_NO
    out: Tensor = _AddProjection.apply(onto_NO, x_NI, layer.weight)  # type: ignore[no-untyped-call]
    return out


def _can_multiply(x_NI: Tensor, layers: tuple[Any, ...]) -> bool:
    """Return whether the C kernel can compute these layers. It reads only weights, and would ignore an adapter."""
    return all(type(layer) is Linear and layer.weight.is_contiguous() for layer in layers) and (
        suits(x_NI, *(layer.weight for layer in layers)) and bool(kernels().has_products())
    )


class _Projections(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, *weights_and_biases: Any) -> tuple[Tensor, ...]:
        x_NI, half = x_NI.contiguous(), len(weights_and_biases) // 2
        weights, biases = weights_and_biases[:half], weights_and_biases[half:]
        ctx.save_for_backward(x_NI, *weights)
        return tuple(_product(x_NI, *pair) for pair in zip(weights, map(_rows_of(x_NI), biases), strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x_NI, *weights = ctx.saved_tensors
        x_grad = None
        if ctx.needs_input_grad[0]:
            for grad_NO, weight_OI in zip(gradients, weights, strict=True):
                x_grad = _product_back(grad_NO, weight_OI, x_grad)
        needed, half = ctx.needs_input_grad[1:], len(weights)
        bias_pairs = zip(needed[half:], gradients, strict=True)
        bias_grads = (grad_NO.sum(0) if is_needed else None for is_needed, grad_NO in bias_pairs)
        return x_grad, *_weight_gradients(needed[:half], gradients, x_NI), *bias_grads


class _AddProjection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, onto_NO: Tensor, x_NI: Tensor, weight_OI: Tensor) -> Tensor:
        x_NI = x_NI.contiguous()
        ctx.save_for_backward(x_NI, weight_OI)
        return _product(x_NI, weight_OI, onto_NO.contiguous())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NO: Tensor) -> Any:
        x_NI, weight_OI = ctx.saved_tensors
        x_grad = _product_back(grad_NO, weight_OI, None) if ctx.needs_input_grad[1] else None
        return grad_NO, x_grad, *_weight_gradients(ctx.needs_input_grad[2:], (grad_NO,), x_NI)


def _rows_of(x_NI: Tensor) -> Callable[[Tensor | None], Tensor | None]:
    """Return a function that repeats a bias for every row of `x_NI`: the C kernel adds a matrix, not a vector."""
    return lambda bias_O: None if bias_O is None else bias_O.expand(len(x_NI), -1).contiguous()


def _product(x_NI: Tensor, weight_OI: Tensor, onto_NO: Tensor | None = None) -> Tensor:
    """Return onto + x weight^T. The weights are first packed for the C kernel."""
    packed = torch.empty(kernels().packed_size(*weight_OI.shape))
    kernels().pack(address(weight_OI), *weight_OI.shape, address(packed))
    out_NO = x_NI.new_empty(len(x_NI), len(weight_OI))
    onto = None if onto_NO is None else address(onto_NO)
    kernels().multiply(address(x_NI), address(packed), onto, address(out_NO), *x_NI.shape, len(weight_OI))
    return out_NO


def _product_back(grad_NO: Tensor, weight_OI: Tensor, onto_NI: Tensor | None) -> Tensor:
    """Return onto + grad @ weight, which overwrites `onto`; only grad @ weight if `onto_NI` is None."""
    num_outputs, num_inputs = weight_OI.shape
    packed = torch.empty(kernels().packed_size(num_inputs, num_outputs))
    kernels().pack_transposed(address(weight_OI), num_outputs, num_inputs, address(packed))
    grad_NO = grad_NO.contiguous()
    out_NI = grad_NO.new_empty(len(grad_NO), num_inputs) if onto_NI is None else onto_NI
    onto = None if onto_NI is None else address(onto_NI)
    kernels().multiply(address(grad_NO), address(packed), onto, address(out_NI), *grad_NO.shape, num_inputs)
    return out_NI


def _weight_gradients(needed: tuple[bool, ...], gradients: tuple[Tensor, ...], x_NI: Tensor) -> list[Tensor | None]:
    pairs = zip(needed, gradients, strict=True)
    return [torch.mm(grad_NO.t(), x_NI) if is_needed else None for is_needed, grad_NO in pairs]


class Angles(NamedTuple):
    """Cosines and sines of every token's rotation; both halves of a row are equal."""

    cos_Nd: Tensor
    sin_Nd: Tensor


def norm_and_rotate(x_NHd: Tensor, norm: Any, angles: Angles) -> Tensor:
    """Return the heads after their RMS norm, unless `norm` is None, and the rotation by their token's angles."""
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


def rotate(x_NHd: Tensor, cos_Nd: Tensor, sin_Nd: Tensor) -> Tensor:
    """Rotate the pair (x[i], x[i + d/2]) of every head by its token's angle; both halves of cos and sin are equal.

    The gradient is the rotation by the opposite angle, so nothing of the input is kept for it."""
    if not torch.is_grad_enabled():
        return _rotated(x_NHd, cos_Nd, sin_Nd, 1)
    rotated: Tensor = _Rotate.apply(x_NHd, cos_Nd, sin_Nd)  # type: ignore[no-untyped-call]
    return rotated


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NHd: Tensor, cos_Nd: Tensor, sin_Nd: Tensor) -> Tensor:
        ctx.save_for_backward(cos_Nd, sin_Nd)
        return _rotated(x_NHd, cos_Nd, sin_Nd, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NHd: Tensor) -> Any:
        cos_Nd, sin_Nd = ctx.saved_tensors
        return _rotated(grad_NHd, cos_Nd, sin_Nd, -1), None, None


def _rotated(x_NHd: Tensor, cos_Nd: Tensor, sin_Nd: Tensor, direction: int) -> Tensor:
    half = x_NHd.shape[-1] // 2
    sin_N1h = sin_Nd[:, None, :half]
    out_NHd = x_NHd * cos_Nd[:, None]
    out_NHd[..., :half].addcmul_(x_NHd[..., half:], sin_N1h, value=-direction)
    out_NHd[..., half:].addcmul_(x_NHd[..., :half], sin_N1h, value=direction)
    return out_NHd


def attend(query_NHd: Tensor, key_NKd: Tensor, value_NKd: Tensor, layout: PackLayout, scale: float) -> Tensor:
    """Return the attention over a pack (N, H * d). The C kernel holds the scores of one block of queries at a time."""
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
        kernels().attend_pack(*tensors, *_pack_arguments(layout, query_NHd, key_NKd), scale)
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
        kernels().attend_pack_back(*tensors, *_pack_arguments(ctx.layout, query_NHd, key_NKd), ctx.scale)
        return *gradients, None, None


def _pack_arguments(layout: PackLayout, query_NHd: Tensor, key_NKd: Tensor) -> tuple[int, ...]:
    """Return the arguments that describe a pack to the kernels: parts, groups, and sizes."""
    _, heads, width = query_NHd.shape
    parts, firsts = layout.parts.data_ptr(), layout.group_firsts.data_ptr()
    return parts, firsts, len(layout.groups), layout.longest, heads, key_NKd.shape[1], width


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up. The backward pass computes both gradients at once."""
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
