"""Which models the fused path computes: those whose every part it knows. All others go through transformers."""

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM

from egpo.local.policies.lora import is_adapted
from egpo.local.policies.own_forward import why_own_forward

SHAPES = (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
# Angles that depend on the length of what is read would need other tables for every sequence.
_ROTATIONS = ("default", "linear", "llama3", "yarn")


def why_not_fused(model: PreTrainedModel) -> str | None:
    """One phrase, or None for a model that is covered."""
    if model.device.type != "cuda":
        return "it is for GPUs"
    if not _has_triton():
        return "Triton is not installed"
    return why_not_known(model)


def why_not_known(model: PreTrainedModel) -> str | None:
    """Of the model alone, wherever it lies."""
    config = model.config
    if type(model) not in SHAPES:
        return f"{type(model).__name__} is not a shape it knows"
    if config.hidden_act not in ("silu", "swish"):
        return f"the activation is {config.hidden_act}"
    if getattr(model.base_model.rotary_emb, "rope_type", "default") not in _ROTATIONS:
        return f"its positions are {model.base_model.rotary_emb.rope_type}"
    reasons = (why for layer in model.base_model.layers if (why := _why_not_layer(layer)))
    return next(reasons, None) or why_own_forward(model)


def _why_not_layer(layer: Any) -> str | None:
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    for part in (*projections, mlp.gate_proj, mlp.up_proj, mlp.down_proj):
        plain = part.base_layer if is_adapted(part) else part
        if type(plain) is not torch.nn.Linear:
            return f"a layer is {type(plain).__name__}"
    if any(part.bias is not None for part in (attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)):
        return "a layer has a bias beyond those of queries, keys and values"
    if getattr(attention, "sliding_window", None):
        return "a layer has a sliding window"
    return None


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
