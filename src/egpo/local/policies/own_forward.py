"""What only a model's own forward pass does, whatever its shape: no other path may compute such a model."""

from typing import Any

from transformers import PreTrainedModel


def why_own_forward(model: PreTrainedModel) -> str | None:
    """One phrase, or None where the layers' weights say everything."""
    base: Any = model.base_model
    hooks = sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in base.modules())
    if hooks > (1 if model.is_gradient_checkpointing else 0):  # which has one of its own, on the embedding
        return "a layer has hooks"
    if 2 * base.rotary_emb.inv_freq.numel() != base.layers[0].self_attn.head_dim:
        return "positions turn a part of each head alone"
    return None
