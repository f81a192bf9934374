"""What only a model's own forward pass does, whatever its shape: no other path may compute such a model."""

from collections.abc import Iterator
from typing import Any

from torch.nn import Module
from transformers import PreTrainedModel


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
