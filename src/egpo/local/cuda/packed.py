"""Hidden states of a pack by fused layers, over the parameters of the transformers model itself.

N tokens side by side, D hidden, H heads of queries, K of keys and values, d their width, F inner width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from egpo.local.cuda.kernels.gather import gather_keys
from egpo.local.cuda.kernels.heads import HeadNorms, HeadShape, Rotation, split_heads
from egpo.local.cuda.kernels.norm import add_rms_norm
from egpo.local.cuda.kernels.swiglu import swiglu
from egpo.local.cuda.projections import projected
from egpo.local.cuda.spans import Spans
from egpo.local.policies.attention import PackLayout, attend_pack
from egpo.local.policies.packs import Pack

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
    spans = Spans.of(layout)
    return lambda query, key, value, scale: _by_sequences(query, key, value, spans, scale)


def _by_groups(query_NHd: Tensor, key_NKd: Tensor, value_NKd: Tensor, layout: PackLayout, scale: float) -> Tensor:
    query, key, value = (tensor[None].transpose(1, 2) for tensor in (query_NHd, key_NKd, value_NKd))
    return attend_pack(query, key, value, layout, scale)[0].flatten(1)


def _by_sequences(query_NHd: Tensor, key_NKd: Tensor, value_NKd: Tensor, spans: Spans, scale: float) -> Tensor:
    """Causal from the end: the last query of a sequence sees all its keys, so a response sees all of its prompt."""
    out_NHd: Tensor = torch.ops.aten._flash_attention_forward(
        query_NHd, gather_keys(key_NKd, spans), gather_keys(value_NKd, spans),
        spans.query_starts, spans.key_starts, spans.longest_query, spans.longest_key, 0.0, True, False, scale=scale,
    )[0]  # fmt: skip
    return out_NHd.flatten(1)
