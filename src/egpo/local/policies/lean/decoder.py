"""Llama, Qwen2 and Qwen3 layer by layer, over the parameters of the transformers model itself.

N tokens side by side, D hidden, H heads of queries, K of keys and values, d their width.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from egpo.local.policies.lean.heads import Angles, placed
from egpo.local.policies.lean.linear import add_projection, projections
from egpo.local.policies.lean.norm import rms_norm
from egpo.local.policies.lean.swiglu import swiglu

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
