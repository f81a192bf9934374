"""Products with weights in training, where ours are the faster ones: weights packed once a pass, sums in place.

N tokens, I inputs, O outputs.

Attention over a pack as it lies, without rectangles: scores stand for one block of queries at a time.

N tokens, H heads of queries, K of keys and values, d their width.

Llama, Qwen2 and Qwen3 layer by layer, over the parameters of the transformers model itself.

N tokens side by side, D hidden, H heads of queries, K of keys and values, d their width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import Linear
from transformers import PreTrainedModel

from egpo.local.models.attention import PackLayout, attend_pack
from egpo.local.models.cpu_layers import Angles, placed, rms_norm, swiglu
from egpo.native.library import address, kernels, suits


def projections(x_NI: Tensor, layers: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Every layer's output for the same input. Its gradient is one sum over all of them."""
    if not _suit(x_NI, layers):
        return tuple(layer(x_NI) for layer in layers)
    weights, biases = (layer.weight for layer in layers), (layer.bias for layer in layers)
    outputs: tuple[Tensor, ...] = _Projections.apply(x_NI, *weights, *biases)  # type: ignore[no-untyped-call]
    return outputs


def add_projection(onto_NO: Tensor, x_NI: Tensor, layer: Any) -> Tensor:
    """onto + layer(x)."""
    if not _suit(x_NI, (layer,)) or layer.bias is not None:
        update_NO: Tensor = layer(x_NI)
        return onto_NO + update_NO
    out: Tensor = _AddProjection.apply(onto_NO, x_NI, layer.weight)  # type: ignore[no-untyped-call]
    return out


def _suit(x_NI: Tensor, layers: tuple[Any, ...]) -> bool:
    """Adapters around a weight would be passed over."""
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
    """A bias to what is added to a product: one row a token."""
    return lambda bias_O: None if bias_O is None else bias_O.expand(len(x_NI), -1).contiguous()


def _product(x_NI: Tensor, weight_OI: Tensor, onto_NO: Tensor | None = None) -> Tensor:
    """onto + x weight^T."""
    packed = torch.empty(kernels().packed_size(*weight_OI.shape))
    kernels().pack(address(weight_OI), *weight_OI.shape, address(packed))
    out_NO = x_NI.new_empty(len(x_NI), len(weight_OI))
    onto = None if onto_NO is None else address(onto_NO)
    kernels().multiply(address(x_NI), address(packed), onto, address(out_NO), *x_NI.shape, len(weight_OI))
    return out_NO


def _product_back(grad_NO: Tensor, weight_OI: Tensor, onto_NI: Tensor | None) -> Tensor:
    """onto + grad weight, in place of onto."""
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


Attend = Callable[[int, Tensor, Tensor, Tensor, float], Tensor]
"""Layer, query (N, H, d), key and value (N, K, d), scale of the scores: to (N, H * d)."""


def decode(model: PreTrainedModel, token_N: Tensor, position_N: Tensor, attend: Attend) -> Tensor:
    """(N, D): hidden states after the last norm."""
    base: Any = model.base_model
    hidden_ND: Tensor = base.embed_tokens(token_N)
    cos, sin = base.rotary_emb(hidden_ND[None], position_N[None])
    for index, layer in enumerate(base.layers):
        hidden_ND = _attention(layer, index, hidden_ND, Angles(cos[0], sin[0]), attend)
        hidden_ND = _mlp(layer, hidden_ND)
    return _normed(hidden_ND, base.norm)


def _attention(layer: Any, index: int, hidden_ND: Tensor, angles: Angles, attend: Attend) -> Tensor:
    attention = layer.self_attn
    normed_ND = _normed(hidden_ND, layer.input_layernorm)
    projected = projections(normed_ND, (attention.q_proj, attention.k_proj, attention.v_proj))
    query, key, value = (tensor.view(len(tensor), -1, attention.head_dim) for tensor in projected)
    query = placed(query, getattr(attention, "q_norm", None), angles)
    key = placed(key, getattr(attention, "k_norm", None), angles)
    seen = attend(index, query, key, value, attention.scaling)
    return add_projection(hidden_ND, seen, attention.o_proj)


def _mlp(layer: Any, hidden_ND: Tensor) -> Tensor:
    normed_ND = _normed(hidden_ND, layer.post_attention_layernorm)
    act_NF = swiglu(*projections(normed_ND, (layer.mlp.gate_proj, layer.mlp.up_proj)))
    return add_projection(hidden_ND, act_NF, layer.mlp.down_proj)


def _normed(x: Tensor, norm: Any) -> Tensor:
    return rms_norm(x, norm.weight, norm.variance_epsilon)
