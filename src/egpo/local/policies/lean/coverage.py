"""Which models the lean forward pass computes: those whose every part it knows. All others go through transformers."""

from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM

from egpo.local.policies.own_forward import why_own_forward

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
