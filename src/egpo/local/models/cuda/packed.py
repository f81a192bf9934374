"""Products with a model's linear layers, with and without adapters. N tokens, D in, A out, r the adapters' rank.

Hidden states of a pack by fused layers, over the parameters of the transformers model itself.

N tokens side by side, D hidden, H heads of queries, K of keys and values, d their width, F inner width.

How many tokens go through the fused layers at once: what their backward pass keeps, and the memory that is free.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from egpo.local.models.attention import PackLayout, attend_pack
from egpo.local.models.cuda.kernels.elementwise import add_rms_norm, swiglu
from egpo.local.models.cuda.kernels.heads import HeadNorms, HeadShape, Rotation, split_heads
from egpo.local.models.cuda.kernels.varlen import VarlenLayout, gather_keys
from egpo.local.models.lora import is_adapted
from egpo.local.models.packs import Pack


def projected(input_ND: Tensor, *parts: Any) -> Tensor:
    """The outputs of several layers side by side: one product, unless they have adapters."""
    if any(is_adapted(part) for part in parts):
        outputs = [_adapted(input_ND, part) if is_adapted(part) else part(input_ND) for part in parts]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
    if len(parts) == 1:
        return linear(input_ND, parts[0].weight, parts[0].bias)
    bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
    return linear(input_ND, torch.cat([part.weight for part in parts]), bias)


def _adapted(input_ND: Tensor, part: Any) -> Tensor:
    """As peft computes it under autocast, in the input's precision. Without, it multiplies in float32, and keeps a copy
    of the input of every layer for the backward pass: half as much memory again, and more time."""
    base_NA = linear(input_ND, part.base_layer.weight, part.base_layer.bias)
    if part.disable_adapters or part.merged:
        return base_NA
    for name in part.active_adapters:
        down_rD, up_Ar = part.lora_A[name].weight, part.lora_B[name].weight * part.scaling[name]
        base_NA = base_NA + linear(linear(input_ND, down_rD.to(input_ND.dtype)), up_Ar.to(input_ND.dtype))
    return base_NA


Collect = Callable[[int, Tensor, Tensor], None]
"""Layer, its keys and its values (N, K, d)."""
Attend = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""Query (N, H, d), key and value (N, K, d), scale of the scores: to (N, H * d)."""


def packed_hidden(model: PreTrainedModel, pack: Pack, collect: Collect | None = None) -> Tensor:
    """(N, D): hidden states after the last norm. `collect` is shown the keys and values of every layer."""
    base: Any = model.base_model
    hidden_ND: Tensor = base.embed_tokens(pack.token_N)
    rotation = Rotation(*rotation_tables(model, pack.layout.longest, hidden_ND.dtype), pack.position_N)
    attend = _attention_over(pack.layout, hidden_ND.dtype)
    update_ND: Tensor | None = None
    # Asked once: the answer is looked for in every module of the model.
    computes_again = model.is_gradient_checkpointing and torch.is_grad_enabled()
    for index, layer in enumerate(base.layers):
        keep = None if collect is None else (lambda key, value, index=index: collect(index, key, value))
        if computes_again:
            hidden_ND, update_ND = checkpoint(
                _layer, layer, hidden_ND, update_ND, rotation, attend, use_reentrant=False
            )
        else:
            hidden_ND, update_ND = _layer(layer, hidden_ND, update_ND, rotation, attend, keep)
    return add_rms_norm(hidden_ND, update_ND, base.norm.weight, base.norm.variance_epsilon)[1]


def rotation_tables(model: PreTrainedModel, num_positions: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines (positions, d), rounded as the model rounds them."""
    position = torch.arange(num_positions, device=model.device)[None]
    base: Any = model.base_model
    cos, sin = base.rotary_emb(torch.empty(0, dtype=dtype, device=model.device), position)
    return cos[0].contiguous(), sin[0].contiguous()


def head_shape(attention: Any) -> HeadShape:
    width = attention.head_dim
    return HeadShape(attention.q_proj.out_features // width, attention.k_proj.out_features // width, width)


def head_norms(attention: Any) -> HeadNorms | None:
    if not hasattr(attention, "q_norm"):
        return None
    return HeadNorms(attention.q_norm.weight, attention.k_norm.weight, attention.q_norm.variance_epsilon)


def _layer(
    layer: Any,
    hidden_ND: Tensor,
    update_ND: Tensor | None,
    rotation: Rotation,
    attend: Attend,
    collect: Callable[[Tensor, Tensor], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """What came in with the last layer's update added, and this layer's own update, which the next norm adds."""
    attention, first, second = layer.self_attn, layer.input_layernorm, layer.post_attention_layernorm
    hidden_ND, normed_ND = add_rms_norm(hidden_ND, update_ND, first.weight, first.variance_epsilon)
    joint_NA = projected(normed_ND, attention.q_proj, attention.k_proj, attention.v_proj)
    query, key, value = split_heads(joint_NA, head_shape(attention), rotation, head_norms(attention))
    if collect is not None:
        collect(key, value)
    update_ND = projected(attend(query, key, value, attention.scaling), attention.o_proj)
    hidden_ND, normed_ND = add_rms_norm(hidden_ND, update_ND, second.weight, second.variance_epsilon)
    inner_NF = swiglu(projected(normed_ND, layer.mlp.gate_proj, layer.mlp.up_proj))
    return hidden_ND, projected(inner_NF, layer.mlp.down_proj)


def _attention_over(layout: PackLayout, dtype: torch.dtype) -> Attend:
    """By sequences of their own lengths; torch's kernel for those knows halves only."""
    if dtype not in (torch.bfloat16, torch.float16):
        return lambda query, key, value, scale: _by_groups(query, key, value, layout, scale)
    spans = VarlenLayout.of(layout)
    return lambda query, key, value, scale: _by_sequences(query, key, value, spans, scale)


def _by_groups(query_NHd: Tensor, key_NKd: Tensor, value_NKd: Tensor, layout: PackLayout, scale: float) -> Tensor:
    query, key, value = (tensor[None].transpose(1, 2) for tensor in (query_NHd, key_NKd, value_NKd))
    return attend_pack(query, key, value, layout, scale)[0].flatten(1)


def _by_sequences(query_NHd: Tensor, key_NKd: Tensor, value_NKd: Tensor, spans: VarlenLayout, scale: float) -> Tensor:
    """Causal from the end: the last query of a sequence sees all its keys, so a response sees all of its prompt."""
    out_NHd: Tensor = torch.ops.aten._flash_attention_forward(
        query_NHd, gather_keys(key_NKd, spans), gather_keys(value_NKd, spans),
        spans.query_starts, spans.key_starts, spans.longest_query, spans.longest_key, 0.0, True, False, scale=scale,
    )[0]  # fmt: skip
    return out_NHd.flatten(1)


# Larger passes are no faster.
_MOST, _FEWEST = 40_960, 2_048
# Of what is free beyond weights, gradients, moments and the decoder's room: the rest is for the allocator's gaps.
_SHARE = 0.6
_ROOM_SHARE = 0.25
# A gradient and two moments in float32.
_BYTES_PER_WEIGHT = 12


def tokens_that_fit(model: PreTrainedModel) -> int:
    """For a model that has been loaded, before its first update."""
    free, total = torch.cuda.mem_get_info(model.device)
    free += torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device)
    learning = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    left = free - _BYTES_PER_WEIGHT * learning - _ROOM_SHARE * total
    return max(_FEWEST, min(_MOST, int(_SHARE * left / bytes_per_token(model))))


def bytes_per_token(model: PreTrainedModel) -> int:
    """What the layers keep of a token for the backward pass: two sums and two norms of the hidden state, the joint
    projection, queries and what attention makes of them, keys and values (with their prompts' beside them: a quarter
    more, say), and three inner states. With gradient checkpointing: what goes into every layer, and one's insides."""
    base: Any = model.base_model
    attention, hidden, layers = base.layers[0].self_attn, model.config.hidden_size, len(base.layers)
    heads = 3 * attention.q_proj.out_features + 4.5 * attention.k_proj.out_features
    inside = 4 * hidden + heads + 3 * model.config.intermediate_size
    numbers = inside + 2 * hidden * layers if model.is_gradient_checkpointing else inside * layers
    return int(numbers * model.dtype.itemsize)
