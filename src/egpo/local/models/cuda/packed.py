"""Hidden states of a pack on a GPU by fused layers, over the parameters of the transformers model.

Tensor suffixes: N tokens of the pack, D hidden, H heads of queries, K heads of keys and of values, d the width of a
head, A outputs of a joint projection, F inner width of the MLP, r the rank of adapters. Layers are read through
`architectures.LayerParts`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from egpo.local.models.architectures import LayerParts, layers_of
from egpo.local.models.attention import attend_pack
from egpo.local.models.cuda.kernels.elementwise import add_rms_norm, swiglu
from egpo.local.models.cuda.kernels.heads import HeadNorms, HeadShape, Rotation, split_heads
from egpo.local.models.cuda.kernels.varlen import gather_keys
from egpo.local.models.lora import is_adapted
from egpo.local.models.packs import Pack, PackLayout, VarlenLayout

Collect = Callable[[int, Tensor, Tensor], None]
"""A function that receives the number of a layer, its keys and its values (N, K, d)."""
Attend = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""A function that computes attention (N, H * d) from queries (N, H, d), keys and values (N, K, d), and the scale of the
scores."""


def packed_hidden(model: PreTrainedModel, pack: Pack, collect: Collect | None = None) -> Tensor:
    """Return the hidden states after the last norm (N, D). `collect` receives the keys and values of every layer."""
    base: Any = model.base_model
    hidden_ND: Tensor = base.embed_tokens(pack.token_N)
    rotation = Rotation(*rotation_tables(model, pack.layout.longest, hidden_ND.dtype), pack.position_N)
    attend = _attention_over(pack.layout, hidden_ND.dtype)
    update_ND: Tensor | None = None
    # Read once: the property searches every module of the model.
    recomputes = model.is_gradient_checkpointing and torch.is_grad_enabled()
    for index, layer in enumerate(layers_of(model)):
        keep = None if collect is None else (lambda key, value, index=index: collect(index, key, value))
        if recomputes:
            hidden_ND, update_ND = checkpoint(
                _layer, layer, hidden_ND, update_ND, rotation, attend, use_reentrant=False
            )
        else:
            hidden_ND, update_ND = _layer(layer, hidden_ND, update_ND, rotation, attend, keep)
    return add_rms_norm(hidden_ND, update_ND, base.norm.weight, base.norm.variance_epsilon)[1]


def rotation_tables(model: PreTrainedModel, num_positions: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of all positions (positions, d), rounded as the model rounds them."""
    position = torch.arange(num_positions, device=model.device)[None]
    base: Any = model.base_model
    cos, sin = base.rotary_emb(torch.empty(0, dtype=dtype, device=model.device), position)
    return cos[0].contiguous(), sin[0].contiguous()


def head_shape(layer: LayerParts) -> HeadShape:
    width = layer.head_width
    return HeadShape(layer.query.out_features // width, layer.key.out_features // width, width)


def head_norms(layer: LayerParts) -> HeadNorms | None:
    if layer.query_norm is None:
        return None
    return HeadNorms(layer.query_norm.weight, layer.key_norm.weight, layer.query_norm.variance_epsilon)


def _layer(
    layer: LayerParts,
    hidden_ND: Tensor,
    update_ND: Tensor | None,
    rotation: Rotation,
    attend: Attend,
    collect: Callable[[Tensor, Tensor], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the input plus the previous layer's update, and this layer's own update, which the next norm adds."""
    first, second = layer.attention_norm, layer.mlp_norm
    hidden_ND, normed_ND = add_rms_norm(hidden_ND, update_ND, first.weight, first.variance_epsilon)
    joint_NA = projected(normed_ND, layer.query, layer.key, layer.value)
    query, key, value = split_heads(joint_NA, head_shape(layer), rotation, head_norms(layer))
    if collect is not None:
        collect(key, value)
    update_ND = projected(attend(query, key, value, layer.scale), layer.out)
    hidden_ND, normed_ND = add_rms_norm(hidden_ND, update_ND, second.weight, second.variance_epsilon)
    inner_NF = swiglu(projected(normed_ND, layer.gate, layer.up))
    return hidden_ND, projected(inner_NF, layer.down)


def _attention_over(layout: PackLayout, dtype: torch.dtype) -> Attend:
    """Return the attention function for a pack: variable-length attention for 16-bit dtypes, else group by group.

    torch has variable-length attention for 16-bit dtypes only.
    """
    if dtype not in (torch.bfloat16, torch.float16):
        return lambda query, key, value, scale: _by_groups(query, key, value, layout, scale)
    varlen = VarlenLayout.of(layout)
    return lambda query, key, value, scale: _by_sequences(query, key, value, varlen, scale)


def _by_groups(query_NHd: Tensor, key_NKd: Tensor, value_NKd: Tensor, layout: PackLayout, scale: float) -> Tensor:
    query, key, value = (tensor[None].transpose(1, 2) for tensor in (query_NHd, key_NKd, value_NKd))
    return attend_pack(query, key, value, layout, scale)[0].flatten(1)


def _by_sequences(query_NHd: Tensor, key_NKd: Tensor, value_NKd: Tensor, varlen: VarlenLayout, scale: float) -> Tensor:
    """Compute variable-length attention over the pack's sequences.

    The causal mask is aligned at the end: the last query of a sequence attends to all its keys, so a response attends
    to its whole prompt.
    """
    out_NHd: Tensor = torch.ops.aten._flash_attention_forward(
        query_NHd, gather_keys(key_NKd, varlen), gather_keys(value_NKd, varlen),
        varlen.query_starts, varlen.key_starts, varlen.longest_query, varlen.longest_key, 0.0, True, False, scale=scale,
    )[0]  # fmt: skip
    return out_NHd.flatten(1)


def projected(input_ND: Tensor, *parts: Any) -> Tensor:
    """Return the concatenated outputs of several layers (N, A), by one matrix product unless they have adapters."""
    if any(is_adapted(part) for part in parts):
        outputs = [_adapted(input_ND, part) if is_adapted(part) else part(input_ND) for part in parts]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
    if len(parts) == 1:
        return linear(input_ND, parts[0].weight, parts[0].bias)
    bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
    return linear(input_ND, torch.cat([part.weight for part in parts]), bias)


def _adapted(input_ND: Tensor, part: Any) -> Tensor:
    """Compute a layer with an adapter in the input's dtype, as peft does under autocast.

    Without autocast, peft multiplies in float32 and keeps a float32 copy of every layer's input for the backward pass,
    which increases the memory use by about half.
    """
    base_NA = linear(input_ND, part.base_layer.weight, part.base_layer.bias)
    if part.disable_adapters or part.merged:
        return base_NA
    for name in part.active_adapters:
        down_rD, up_Ar = part.lora_A[name].weight, part.lora_B[name].weight * part.scaling[name]
        base_NA = base_NA + linear(linear(input_ND, down_rD.to(input_ND.dtype)), up_Ar.to(input_ND.dtype))
    return base_NA
