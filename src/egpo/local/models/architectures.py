"""What only a model's own forward pass does, whatever its shape: no other path may compute such a model.

Which models the lean forward pass computes: those whose every part it knows. All others go through transformers.

Which models the fused path computes: those whose every part it knows. All others go through transformers.
"""

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch.nn import Module
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM

from egpo.local.models.lora import is_adapted


def why_own_forward(model: PreTrainedModel) -> str | None:
    """One phrase, or None where the layers' weights say everything."""
    base: Any = model.base_model
    if any(_is_foreign(hook) for part in base.modules() for hook in _hooks(part)):
        return "a layer has hooks"
    if 2 * base.rotary_emb.inv_freq.numel() != base.layers[0].self_attn.head_dim:
        return "positions turn a part of each head alone"
    return None


def _hooks(part: Module) -> Iterator[Any]:
    yield from part._forward_hooks.values()
    yield from part._forward_pre_hooks.values()


def _is_foreign(hook: Any) -> bool:
    """Those of transformers change no figure: for gradient checkpointing, and to show states that were asked for."""
    return not getattr(hook, "__module__", "").startswith("transformers.")


SHAPES = (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)


def why_not_lean(model: PreTrainedModel) -> str | None:
    """One phrase, or None for a model that is covered."""
    if type(model) not in SHAPES:
        return f"{type(model).__name__} is not a shape it knows"
    if model.device.type != "cpu":
        return "it is for CPUs"
    if model.is_gradient_checkpointing:
        return "layers are computed again in the backward pass"
    if model.config.hidden_act not in ("silu", "swish"):
        return f"the activation is {model.config.hidden_act}"
    if any(getattr(layer.self_attn, "sliding_window", None) for layer in model.base_model.layers):
        return "a layer has a sliding window"
    return why_own_forward(model)


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
