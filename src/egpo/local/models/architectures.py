"""The table of architectures that the engine's own layers compute, and the features that those layers do not support.

Four paths compute the same decoder layer: packs on a CPU and packs on a GPU (`cpu_decoder`, `cuda/packed`), one token
per row on a CPU and on a GPU (`native/sources/decode.c`, `sampling/cuda/token_graphs`). All of them read a model's
layers as `LayerParts`:

    h = h + out(attention(rotate(query_norm(query(x))), rotate(key_norm(key(x))), value(x)))    x = attention_norm(h)
    h = h + down(silu(gate(y)) * up(y))                                                         y = mlp_norm(h)

To add an architecture with this layer: add a row to ARCHITECTURES and its name to `FAST_ARCHITECTURES` in
`egpo/support.py`, which `egpo plan` and `egpo doctor` read. Every other model is computed by transformers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch.nn import Module
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM

from egpo.local.models.lora import is_adapted

LayerPath = Literal["cpu_layers", "cpu_token_step", "cuda_layers"]
"""The code that computes a layer: packs on a CPU, the C kernel for one token per row, or either path on a GPU."""


@dataclass(frozen=True)
class LayerParts:
    """The modules of one decoder layer by their role. `query_norm` and `key_norm` are None if the layer has none."""

    attention_norm: Any
    query: Any
    key: Any
    value: Any
    query_norm: Any
    key_norm: Any
    out: Any
    mlp_norm: Any
    gate: Any
    up: Any
    down: Any
    head_width: int
    scale: float

    @property
    def linears(self) -> tuple[Any, ...]:
        """The seven projections, queries, keys and values first: the order of `layer_t` in decode.c."""
        return self.query, self.key, self.value, self.out, self.gate, self.up, self.down


@dataclass(frozen=True)
class UnsupportedFeature:
    """A feature of models that the code paths in `paths` cannot compute.

    `reason` returns a phrase that names the feature if the model has it, else None.
    """

    reason: Callable[[PreTrainedModel], str | None]
    paths: frozenset[LayerPath]


@dataclass(frozen=True)
class Architecture:
    """One row of the table: the exact class of transformers, and what its layer has beyond the common one.

    `head_norms`: an RMS norm of each head of queries and keys, before the rotation. `qkv_bias`: a bias of queries, keys
    and values. `model_type` is the name of the architecture in a config.json.
    """

    model_class: type[PreTrainedModel]
    model_type: str
    head_norms: bool
    qkv_bias: bool

    def parts(self, layer: Any) -> LayerParts:
        attention, mlp = layer.self_attn, layer.mlp
        return LayerParts(
            attention_norm=layer.input_layernorm,
            query=attention.q_proj,
            key=attention.k_proj,
            value=attention.v_proj,
            query_norm=attention.q_norm if self.head_norms else None,
            key_norm=attention.k_norm if self.head_norms else None,
            out=attention.o_proj,
            mlp_norm=layer.post_attention_layernorm,
            gate=mlp.gate_proj,
            up=mlp.up_proj,
            down=mlp.down_proj,
            head_width=attention.head_dim,
            scale=attention.scaling,
        )


ARCHITECTURES = (
    Architecture(LlamaForCausalLM, "llama", head_norms=False, qkv_bias=False),
    Architecture(Qwen2ForCausalLM, "qwen2", head_norms=False, qkv_bias=True),
    Architecture(Qwen3ForCausalLM, "qwen3", head_norms=True, qkv_bias=False),
)


def layers_of(model: PreTrainedModel) -> list[LayerParts]:
    """Return the decoder layers of a model that has a row in the table, in order."""
    architecture = _architecture(model)
    assert architecture is not None, f"{type(model).__name__} has no row in ARCHITECTURES"
    return [architecture.parts(layer) for layer in model.base_model.layers]


def why_not_cpu_layers(model: PreTrainedModel) -> str | None:
    """Return why the engine's layers for CPUs cannot compute the model, in one phrase; None if they can."""
    return "the model is not on a CPU" if model.device.type != "cpu" else unsupported_feature(model, "cpu_layers")


def why_not_cuda_layers(model: PreTrainedModel) -> str | None:
    """Return why the engine's layers for GPUs cannot compute the model, in one phrase; None if they can."""
    if model.device.type != "cuda":
        return "the model is not on a GPU"
    if not _has_triton():
        return "Triton is not installed"
    return unsupported_feature(model, "cuda_layers")


def unsupported_feature(model: PreTrainedModel, path: LayerPath) -> str | None:
    """Return the first feature of the model that the path cannot compute; None if there is none."""
    if _architecture(model) is None:
        return "unknown architecture"
    reasons = (feature.reason(model) for feature in UNSUPPORTED_FEATURES if path in feature.paths)
    return next((reason for reason in reasons if reason), None)


def _architecture(model: PreTrainedModel) -> Architecture | None:
    """Return the row of the model's class; None if there is none. A subclass does not count: its layers may differ."""
    return next((row for row in ARCHITECTURES if type(model) is row.model_class), None)


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _recomputed_layers(model: PreTrainedModel) -> str | None:
    return "gradient checkpointing is on" if model.is_gradient_checkpointing else None


def _other_activation(model: PreTrainedModel) -> str | None:
    activation = model.config.hidden_act
    return None if activation in ("silu", "swish") else f"the activation is {activation}"


def _rotation_by_length(model: PreTrainedModel) -> str | None:
    """Return a phrase if the rotary angles depend on the sequence's length: one table is used for all lengths."""
    rotation = getattr(model.base_model.rotary_emb, "rope_type", "default")
    is_fixed = rotation in ("default", "linear", "llama3", "yarn")
    return None if is_fixed else f"the rotary positions are {rotation}"


def _other_linear(model: PreTrainedModel) -> str | None:
    plain = (part.base_layer if is_adapted(part) else part for layer in layers_of(model) for part in layer.linears)
    return next((f"a layer is {type(part).__name__}" for part in plain if type(part) is not torch.nn.Linear), None)


def _adapter(model: PreTrainedModel) -> str | None:
    """Return a phrase if a layer has an adapter: the C kernel reads only weights, and would ignore it."""
    linears = (part for layer in layers_of(model) for part in layer.linears)
    return next(("a layer has an adapter" for part in linears if type(part) is not torch.nn.Linear), None)


def _other_bias(model: PreTrainedModel) -> str | None:
    row = _architecture(model)
    first = 3 if row is not None and row.qkv_bias else 0
    linears = (part for layer in layers_of(model) for part in layer.linears[first:])
    has_bias = any(part.bias is not None for part in linears)
    return "a layer has a bias beyond those of queries, keys and values" if has_bias else None


def _sliding_window(model: PreTrainedModel) -> str | None:
    windows = (getattr(layer.self_attn, "sliding_window", None) for layer in model.base_model.layers)
    return "a layer has a sliding window" if any(windows) else None


def _hooked_layer(model: PreTrainedModel) -> str | None:
    """Return "a layer has hooks" if a hook might change its result, else None. Hooks of transformers itself do not."""
    hooks = (hook for part in model.base_model.modules() for hook in _hooks(part))
    is_foreign = any(not getattr(hook, "__module__", "").startswith("transformers.") for hook in hooks)
    return "a layer has hooks" if is_foreign else None


def _hooks(part: Module) -> Iterator[Any]:
    yield from part._forward_hooks.values()
    yield from part._forward_pre_hooks.values()


def _partial_rotation(model: PreTrainedModel) -> str | None:
    base: Any = model.base_model
    is_whole = 2 * base.rotary_emb.inv_freq.numel() == base.layers[0].self_attn.head_dim
    return None if is_whole else "rotary positions cover only a part of each head"


_CPU: frozenset[LayerPath] = frozenset({"cpu_layers"})
_TOKEN_STEP: frozenset[LayerPath] = frozenset({"cpu_token_step"})
_CUDA: frozenset[LayerPath] = frozenset({"cuda_layers"})

UNSUPPORTED_FEATURES = (
    UnsupportedFeature(_recomputed_layers, _CPU),
    UnsupportedFeature(_other_activation, _CPU | _CUDA),
    UnsupportedFeature(_rotation_by_length, _TOKEN_STEP | _CUDA),
    UnsupportedFeature(_other_linear, _CUDA),
    UnsupportedFeature(_adapter, _TOKEN_STEP),
    UnsupportedFeature(_other_bias, _CUDA),
    UnsupportedFeature(_sliding_window, _CPU | _CUDA),
    UnsupportedFeature(_hooked_layer, _CPU | _CUDA),
    UnsupportedFeature(_partial_rotation, _CPU | _CUDA),
)
