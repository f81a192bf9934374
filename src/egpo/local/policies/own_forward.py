"""What only a model's own forward pass does, whatever its shape: no other path may compute such a model."""

from typing import Any

from transformers import PreTrainedModel


def why_own_forward(model: PreTrainedModel) -> str | None:
    """One phrase, or None where the layers' weights say everything."""
    if any(part._forward_hooks or part._forward_pre_hooks for part in model.base_model.modules()):
        return "a layer has hooks"
    base: Any = model.base_model
    if 2 * base.rotary_emb.inv_freq.numel() != base.layers[0].self_attn.head_dim:
        return "positions turn a part of each head alone"
    return None
