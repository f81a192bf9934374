"""The inputs of a plan: GPUs, the dimensions of a decoder from its `config.json`, and the work of a step."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpo.config import Config
from egpo.config.machine import model_folder
from egpo.errors import InputError, nearest
from egpo.support import FAST_ARCHITECTURES


@dataclass(frozen=True)
class Card:
    """A GPU with its memory and rates.

    `bytes_per_s` counts the bytes read and written by a copy, `operations_per_s` the bfloat16 operations of large
    matrix products.
    """

    name: str
    bytes: float
    bytes_per_s: float
    operations_per_s: float


# The H200's rates are measured (benchmarks/one_gpu.py prints them). The others are 0.9 of the vendor's memory rate and
# 0.8 of its matrix rate: the fractions that were measured on the H200.
CARDS = {
    "h200": Card("H200, 141 GB", 150.7e9, 4.29e12, 777e12),
    "h100": Card("H100, 80 GB", 85.5e9, 0.9 * 3.35e12, 0.8 * 990e12),
    "a100": Card("A100, 80 GB", 85.1e9, 0.9 * 2.04e12, 0.8 * 312e12),
    "rtx4090": Card("RTX 4090, 24 GB", 25.4e9, 0.9 * 1.01e12, 0.8 * 165e12),
}


@dataclass(frozen=True)
class ModelShape:
    """The dimensions of a decoder.

    `queries` and `keys` are the numbers of query heads and of key-value heads, `width` is the size of a head, `inner`
    that of the MLP, and `tied` means that embedding and head share their weights.
    """

    hidden: int
    inner: int
    layers: int
    queries: int
    keys: int
    width: int
    vocabulary: int
    tied: bool
    layer_tensors: int = 11
    """Number of parameter tensors of a layer, with norms and biases. The default is Qwen3's."""

    @property
    def joint(self) -> int:
        """Weights per layer that sampling keeps a second copy of: query, key, value, gate and up projections."""
        return self.hidden * ((self.queries + 2 * self.keys) * self.width + 2 * self.inner)

    @property
    def layer(self) -> int:
        """Number of weights in the projection matrices of one layer: attention and MLP."""
        return self.joint + self.hidden * (self.queries * self.width + self.inner)

    @property
    def head(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def weights(self) -> int:
        """Number of all weights except those of norms, which are negligible."""
        return self.layers * self.layer + self.head * (1 if self.tied else 2)

    @property
    def sent_weights(self) -> int:
        """Number of weights in the state dict that verl sends to vLLM: a tied head is in it under two names."""
        return self.layers * self.layer + 2 * self.head

    @property
    def sent_tensors(self) -> int:
        """Number of tensors in that state dict: those of the layers, the embedding, the last norm and the head."""
        return self.layers * self.layer_tensors + 3

    @property
    def cached_numbers(self) -> int:
        """Numbers in the key-value cache for one token."""
        return 2 * self.layers * self.keys * self.width

    def adapter_weights(self, rank: int, layers: tuple[str, ...] = ()) -> int:
        """Return the number of weights of adapters beside these projections of each layer; beside all if none is named.

        A name may have a path before it, as in `mlp.up_proj`.
        """
        return self.layers * rank * sum(self._adapter_ends(layers))

    def adapter_tensors(self, layers: tuple[str, ...] = ()) -> int:
        """Return the number of their tensors: two beside each projection."""
        return 2 * self.layers * len(self._adapter_ends(layers))

    def _adapter_ends(self, layers: tuple[str, ...]) -> list[int]:
        """Return the inputs and outputs of each projection of a layer that has adapters, added."""
        query, key = self.queries * self.width, self.keys * self.width
        ends = {
            "q_proj": self.hidden + query,
            "k_proj": self.hidden + key,
            "v_proj": self.hidden + key,
            "o_proj": query + self.hidden,
            "gate_proj": self.hidden + self.inner,
            "up_proj": self.hidden + self.inner,
            "down_proj": self.inner + self.hidden,
        }
        names = {layer.rpartition(".")[2] for layer in layers} or set(ends)
        for name in sorted(names - set(ends)):
            what = f"cannot count the adapters of `{name}`"
            raise InputError(what, where="model.lora.layers", fix=nearest(name, ends))
        return [ends[name] for name in names]

    def kept_numbers(self, gradient_checkpointing: bool = False) -> float:
        """Return how many numbers a token keeps for the backward pass, as in `egpo.local.updates.micro_batches`."""
        heads = (3 * self.queries + 4.5 * self.keys) * self.width
        inside = 4 * self.hidden + heads + 3 * self.inner
        return inside + 2 * self.hidden * self.layers if gradient_checkpointing else inside * self.layers


LAYER_TENSORS = {"llama": 9, "qwen2": 12, "qwen3": 11}
"""Parameter tensors of a layer: seven projections and two norms; Qwen2 adds three biases, Qwen3 two norms of heads."""


def read_shape(path: str) -> ModelShape:
    """Read the shape of the model that a recipe names. Its folder must be on this machine."""
    where = f"model {path}"
    file = Path(model_folder(path)).expanduser() / "config.json"
    if not file.is_file():
        raise InputError(
            "the model's config.json is missing", where=where, fix="put the model's folder on this machine"
        )
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"the model's config.json cannot be read ({error})",
            where=where,
            fix="check that the model folder is complete",
        ) from error
    if not isinstance(config, dict):
        fix = "check that the model folder is complete"
        raise InputError("the model's config.json is not a JSON object", where=where, fix=fix)
    return _shape(config, where)


def _shape(config: dict[str, Any], where: str) -> ModelShape:
    if config.get("model_type") not in FAST_ARCHITECTURES:
        raise InputError(
            f"cannot estimate the cost of `{config.get('model_type')}`",
            where=where,
            fix=f"choose a model of one of these types: {', '.join(FAST_ARCHITECTURES)}",
        )
    queries = _count(config, "num_attention_heads", where)
    hidden = _count(config, "hidden_size", where)
    return ModelShape(
        hidden=hidden,
        inner=_count(config, "intermediate_size", where),
        layers=_count(config, "num_hidden_layers", where),
        queries=queries,
        keys=_count(config, "num_key_value_heads", where, queries),
        width=_count(config, "head_dim", where, hidden // queries),
        vocabulary=_count(config, "vocab_size", where),
        tied=bool(config.get("tie_word_embeddings", False)),
        layer_tensors=LAYER_TENSORS[config["model_type"]],
    )


def _count(config: dict[str, Any], key: str, where: str, usual: int | None = None) -> int:
    """Return a positive integer of the config, or `usual` if the key is missing; InputError for other values."""
    value = config.get(key)
    value = usual if value is None else value
    if value is None:
        fix = "check that the model folder is complete"
        raise InputError(f"the model's config.json has no `{key}`", where=where, fix=fix)
    if not isinstance(value, int) or value < 1:
        raise InputError(
            f"`{key}` in the model's config.json is {value!r:.40}", where=where, fix="it must be a positive integer"
        )
    return value


USUAL_PROMPT_TOKENS = 128


@dataclass(frozen=True)
class StepJob:
    """The work of one step: `prompts` groups of `group` responses.

    `response_tokens` is the mean length of a response, `longest` the maximum, for which memory is reserved. `at_once`
    rows are sampled together.
    """

    prompts: int
    group: int
    prompt_tokens: int
    response_tokens: int
    longest: int
    at_once: int
    epochs: int = 1
    lora: bool = False
    reference: bool = False
    """Whether a reference model computes log-probabilities. With adapters it is the policy without them."""
    gradient_checkpointing: bool = False
    bytes_per_weight: int = 2
    adapter_weights: int = 0
    """Number of weights of the adapters, for plans with verl. The plan for one GPU neglects them."""
    adapter_tensors: int = 0
    """Number of their tensors: verl sends each by itself."""
    lora_merged: bool = False
    """Whether verl's sampler gets the merged weights instead of the adapters."""

    @property
    def rows(self) -> int:
        return self.prompts * self.group

    @property
    def new_tokens(self) -> int:
        return self.rows * self.response_tokens

    @property
    def model_copies(self) -> int:
        """Number of models in memory: a reference is a second one, unless it is the policy without its adapters."""
        return 2 if self.reference and not self.lora else 1

    @property
    def group_tokens(self) -> int:
        """Number of tokens of one prompt and all its responses, which share the prompt in a forward pass."""
        return self.prompt_tokens + self.group * (self.response_tokens - 1)

    @classmethod
    def of(cls, config: Config, prompt_tokens: int | None, response_tokens: int | None) -> "StepJob":
        """Read the work of a step from a recipe. Unset lengths default to the recipe's maximum."""
        rollout = config.rollout
        return cls(
            prompts=rollout.prompts,
            group=rollout.n,
            prompt_tokens=prompt_tokens or rollout.max_prompt_tokens or USUAL_PROMPT_TOKENS,
            response_tokens=min(response_tokens or rollout.max_response_tokens, rollout.max_response_tokens),
            longest=rollout.max_response_tokens,
            at_once=min(rollout.rows_at_once or rollout.batch, rollout.batch),
            epochs=config.update.epochs,
            lora=config.model.lora is not None,
            reference=config.update.kl > 0,
            gradient_checkpointing=config.model.gradient_checkpointing,
            bytes_per_weight=4 if config.model.dtype == "float32" else 2,
        )
