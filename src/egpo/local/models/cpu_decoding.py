"""The decoding kernel's view of a model: where its weights and its cache lie. D hidden, R rows."""

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from egpo.native.library import address, kernels, suits

BLOCK = 16
"""Slots of keys that lie number by number: the width of a vector."""
_MOST_PACKED = 1 << 26
"""Weights of a model of which sampling holds a second, packed copy, where products with it are faster."""
_FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, eq=False)
class Stores:
    """Of one layer, as slot_attention.c lays them out."""

    prompt_keys: Tensor
    prompt_values: Tensor
    keys: Tensor
    values: Tensor


class _Sizes(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("layers", "hidden", "inner", "heads", "key_heads", "width", "packed")),
        *((name, ctypes.c_float) for name in ("scale", "eps")),
    ]


class _Batch(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("token", "position", "prompt", "prompt_length")),
        *((name, ctypes.c_int32) for name in ("rows", "own_length", "prompt_slots", "slots")),
    ]


class Decoding:
    """Holds addresses, and the tensors that they are of. For as long as it lives, the weights must not change."""

    def __init__(self, model: PreTrainedModel, stores: list[Stores], num_positions: int) -> None:
        base: Any = model.base_model
        self._stores, self._sizes = stores, _sizes(model)
        self._weights = [_weights(layer, is_packed=bool(self._sizes.packed)) for layer in base.layers]
        layers = zip(base.layers, self._weights, stores, strict=True)
        self._layers = torch.tensor([_layer(*layer) for layer in layers])
        cos, sin = base.rotary_emb(base.embed_tokens.weight[:1], torch.arange(num_positions)[None])
        self._angles = cos[0].contiguous(), sin[0].contiguous()
        around = (base.embed_tokens.weight, base.norm.weight, *self._angles)
        self._around = torch.tensor([address(tensor) for tensor in around])

    def step(self, rows: tuple[Tensor, ...], num_rows: int, own_length: int, slots: tuple[int, int]) -> Tensor:
        """(R, D). `rows`: token, position and prompt of each row, and each prompt's length (int64)."""
        sizes = self._sizes
        batch = _Batch(*(tensor.data_ptr() for tensor in rows), num_rows, own_length, *slots)
        width = 2 * (sizes.hidden + sizes.heads * sizes.width + sizes.inner) + 3 * sizes.key_heads * sizes.width
        memory, out_RD = torch.empty(num_rows * width), torch.empty(num_rows, sizes.hidden)
        tables = self._layers.data_ptr(), ctypes.byref(batch), self._around.data_ptr()
        kernels().decode(ctypes.byref(sizes), *tables, address(memory), address(out_RD))
        return out_RD


def can_decode(model: PreTrainedModel) -> bool:
    """Of a model that the lean path covers: whether the kernel does too."""
    base: Any = model.base_model
    return (
        # The kernel reads weights, not modules: adapters around them would be passed over.
        all(type(linear) is torch.nn.Linear for layer in base.layers for linear in _projections(layer))
        and base.layers[0].self_attn.head_dim % BLOCK == 0
        and base.rotary_emb.rope_type in _FIXED_ROTATIONS
        and suits(*model.parameters())
        and all(weight.is_contiguous() for weight in model.parameters())
    )


def _sizes(model: PreTrainedModel) -> _Sizes:
    base: Any = model.base_model
    config, attention = model.config, base.layers[0].self_attn
    return _Sizes(
        layers=len(base.layers),
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        width=attention.head_dim,
        packed=kernels().has_products() and sum(map(torch.numel, model.parameters())) <= _MOST_PACKED,
        scale=attention.scaling,
        eps=config.rms_norm_eps,
    )


def _weights(layer: Any, *, is_packed: bool) -> list[Tensor | None]:
    """Weight and bias of every projection in turn."""
    pairs = ((linear.weight, linear.bias) for linear in _projections(layer))
    return [tensor for weight, bias in pairs for tensor in (_packed(weight) if is_packed else weight, bias)]


def _packed(weight: Tensor) -> Tensor:
    outputs, inputs = weight.shape
    packed = torch.empty(kernels().packed_size(outputs, inputs))
    kernels().pack(address(weight), outputs, inputs, address(packed))
    return packed


def _layer(layer: Any, weights: list[Tensor | None], store: Stores) -> list[int]:
    """Addresses in the order of the kernel's `layer_t`; 0 for what the model lacks."""
    norms = (getattr(layer.self_attn, name, None) for name in ("q_norm", "k_norm"))
    tensors = (
        layer.input_layernorm.weight,
        *weights[:6],
        *(None if norm is None else norm.weight for norm in norms),
        *weights[6:8],
        layer.post_attention_layernorm.weight,
        *weights[8:],
        *(store.prompt_keys, store.prompt_values, store.keys, store.values),
    )
    return [0 if tensor is None else address(tensor) for tensor in tensors]


def _projections(layer: Any) -> tuple[Any, ...]:
    attention, mlp = layer.self_attn, layer.mlp
    before, after = (attention.q_proj, attention.k_proj, attention.v_proj), (attention.o_proj,)
    return *before, *after, mlp.gate_proj, mlp.up_proj, mlp.down_proj
