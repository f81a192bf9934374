"""Decoder layers on a CPU, over the parameters of the transformers model: whole packs, or one token per row in C.

Tensor suffixes: N tokens of a pack, R rows, D hidden, H heads of queries, K heads of keys and of values, d the width of
a head. `decode` computes a pack layer by layer, with gradients; `TokenStep` computes one more token of every row by one
call of `native/sources/decode.c`, without gradients. Both read the layers through `architectures.LayerParts`.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from egpo.local.models.architectures import LayerParts, layers_of, unsupported_feature
from egpo.local.models.cpu_operations import Angles, add_projection, norm_and_rotate, projections, rms_norm, swiglu
from egpo.native.library import address, kernels, suits

Attend = Callable[[int, Tensor, Tensor, Tensor, float], Tensor]
"""A function that computes attention (N, H * d) from the layer's number, queries (N, H, d), keys and values (N, K, d),
and the scale of the scores."""

BLOCK = 16
"""Number of slots in a block, whose keys are stored dimension by dimension: the width of a vector register."""
_MOST_PACKED_WEIGHTS = 1 << 26
"""Largest number of weights of which sampling keeps a second, packed copy, with which matrix products are faster."""


def decode(model: PreTrainedModel, token_N: Tensor, position_N: Tensor, attend: Attend) -> Tensor:
    """Return the hidden states after the last norm (N, D). `attend` computes the attention of each layer."""
    base: Any = model.base_model
    hidden_ND: Tensor = base.embed_tokens(token_N)
    cos, sin = base.rotary_emb(hidden_ND[None], position_N[None])
    for index, layer in enumerate(layers_of(model)):
        hidden_ND = _attention(layer, index, hidden_ND, Angles(cos[0], sin[0]), attend)
        hidden_ND = _mlp(layer, hidden_ND)
    return _normed(hidden_ND, base.norm)


def _attention(layer: LayerParts, index: int, hidden_ND: Tensor, angles: Angles, attend: Attend) -> Tensor:
    projected = projections(_normed(hidden_ND, layer.attention_norm), (layer.query, layer.key, layer.value))
    query, key, value = (tensor.view(len(tensor), -1, layer.head_width) for tensor in projected)
    query = norm_and_rotate(query, layer.query_norm, angles)
    key = norm_and_rotate(key, layer.key_norm, angles)
    return add_projection(hidden_ND, attend(index, query, key, value, layer.scale), layer.out)


def _mlp(layer: LayerParts, hidden_ND: Tensor) -> Tensor:
    act_NF = swiglu(*projections(_normed(hidden_ND, layer.mlp_norm), (layer.gate, layer.up)))
    return add_projection(hidden_ND, act_NF, layer.down)


def _normed(x: Tensor, norm: Any) -> Tensor:
    return rms_norm(x, norm.weight, norm.variance_epsilon)


@dataclass(frozen=True, eq=False)
class LayerSlots:
    """Keys and values of one layer, in the memory layout of slot_attention.c."""

    prompt_keys: Tensor
    prompt_values: Tensor
    keys: Tensor
    values: Tensor


class _Sizes(ctypes.Structure):
    """The struct `sizes_t` of the C kernels: the sizes of a model."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("layers", "hidden", "inner", "heads", "key_heads", "width", "packed")),
        *((name, ctypes.c_float) for name in ("scale", "eps")),
    ]


class _Rows(ctypes.Structure):
    """The struct `batch_t` of decode.c: the rows that get one more token."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("token", "position", "prompt", "prompt_length")),
        *((name, ctypes.c_int32) for name in ("rows", "prompt_slots", "slots")),
    ]


class TokenStep:
    """The computation of one more token of every row through all layers, by decode.c.

    It keeps the addresses that decode.c reads, and the tensors at these addresses. The weights must not change while an
    instance is in use.
    """

    def __init__(self, model: PreTrainedModel, caches: list[LayerSlots], num_positions: int) -> None:
        base: Any = model.base_model
        layers = layers_of(model)
        self._caches, self._sizes = caches, _sizes(model, layers[0])
        self._weights = [_weights(layer, is_packed=bool(self._sizes.packed)) for layer in layers]
        rows = zip(layers, self._weights, caches, strict=True)
        self._layers = torch.tensor([_addresses(*row) for row in rows])
        cos, sin = base.rotary_emb(base.embed_tokens.weight[:1], torch.arange(num_positions)[None])
        self._angles = cos[0].contiguous(), sin[0].contiguous()
        around = (base.embed_tokens.weight, base.norm.weight, *self._angles)
        self._around = torch.tensor([address(tensor) for tensor in around])

    def step(self, rows: tuple[Tensor, ...], num_rows: int, slots: tuple[int, int]) -> Tensor:
        """Return the hidden states of the new tokens (R, D).

        `rows`: token, position and prompt of each row, and the length of each prompt (int64). `slots`: number of cache
        slots of a prompt, and of a row.
        """
        sizes = self._sizes
        batch = _Rows(*(tensor.data_ptr() for tensor in rows), num_rows, *slots)
        width = 2 * (sizes.hidden + sizes.heads * sizes.width + sizes.inner) + 3 * sizes.key_heads * sizes.width
        memory, out_RD = torch.empty(num_rows * width), torch.empty(num_rows, sizes.hidden)
        tables = self._layers.data_ptr(), ctypes.byref(batch), self._around.data_ptr()
        kernels().decode(ctypes.byref(sizes), *tables, address(memory), address(out_RD))
        return out_RD


def can_step_in_c(model: PreTrainedModel) -> bool:
    """Return whether decode.c can compute a model that the CPU layers support."""
    return (
        unsupported_feature(model, "cpu_token_step") is None
        and layers_of(model)[0].head_width % BLOCK == 0
        and suits(*model.parameters())
        and all(weight.is_contiguous() for weight in model.parameters())
    )


def _sizes(model: PreTrainedModel, layer: LayerParts) -> _Sizes:
    config = model.config
    return _Sizes(
        layers=len(model.base_model.layers),
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        width=layer.head_width,
        packed=kernels().has_products() and sum(map(torch.numel, model.parameters())) <= _MOST_PACKED_WEIGHTS,
        scale=layer.scale,
        eps=config.rms_norm_eps,
    )


def _weights(layer: LayerParts, *, is_packed: bool) -> list[Tensor | None]:
    """Return the weight and the bias of each projection in turn."""
    pairs = ((linear.weight, linear.bias) for linear in layer.linears)
    return [tensor for weight, bias in pairs for tensor in (_packed(weight) if is_packed else weight, bias)]


def _packed(weight: Tensor) -> Tensor:
    outputs, inputs = weight.shape
    packed = torch.empty(kernels().packed_size(outputs, inputs))
    kernels().pack(address(weight), outputs, inputs, address(packed))
    return packed


def _addresses(layer: LayerParts, weights: list[Tensor | None], cache: LayerSlots) -> list[int]:
    """Return the addresses in the order of `layer_t` in decode.c; 0 for a part that the model does not have."""
    tensors = (
        layer.attention_norm.weight,
        *weights[:6],
        *(None if norm is None else norm.weight for norm in (layer.query_norm, layer.key_norm)),
        *weights[6:8],
        layer.mlp_norm.weight,
        *weights[8:],
        *(cache.prompt_keys, cache.prompt_values, cache.keys, cache.values),
    )
    return [0 if tensor is None else address(tensor) for tensor in tensors]
