"""What is trained."""

from typing import Literal

from pydantic import Field

from egpo.config.sections.section import Count, PathText, Positive, Section, Words


class Lora(Section):
    rank: Count = 16
    """Of the two matrices beside each adapted layer."""
    alpha: Positive = 32.0
    """Their product is scaled by alpha / rank."""
    layers: Words = ()
    """Names of the layers to adapt (`q_proj`, ...); none: every linear layer but the head."""


class Model(Section):
    path: PathText
    """A folder with a transformers causal language model, its name on the hub, or `egpo-tiny` of the package."""
    init: Literal["pretrained", "random"] = "pretrained"
    """`random`: the folder's config.json and tokenizer, with weights drawn afresh from `seed`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: the GPU where there is one. (The local engine's; verl has its own.)"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the weights: `auto` is bfloat16 on a GPU, with a float32 copy in the optimizer, and float32 on a CPU."""
    deterministic: bool = False
    """On a GPU: the same seed gives the same bits, by torch's deterministic algorithms, for a little time. A CPU gives
    them anyway. (The local engine's.)"""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    template: dict[str, str | bool | int] = Field({})
    """Variables for the chat template, such as `enable_thinking: false`."""
    lora: Lora | None = None
    """Train adapters in place of the weights (needs peft); merged when a checkpoint is written."""
