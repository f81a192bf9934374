"""GPUs, by what a plan needs of them.

The numbers of a decoder, from its config.json.

The work of a step: so many prompts, so many responses, so long.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpo.config import Config
from egpo.config.machine import model_folder
from egpo.errors import InputError


@dataclass(frozen=True)
class Card:
    """`bytes` of memory; `bytes_per_s` that a copy moves, read and written; `operations_per_s` of a product of large
    bfloat16 matrices."""

    name: str
    bytes: float
    bytes_per_s: float
    operations_per_s: float


# The H200's rates are measured (benchmarks/one_gpu.py prints them). The others' are nine tenths of what their makers
# state for memory, and four fifths for products: the H200's own shares.
CARDS = {
    "h200": Card("H200, 141 GB", 150.7e9, 4.29e12, 777e12),
    "h100": Card("H100, 80 GB", 85.5e9, 0.9 * 3.35e12, 0.8 * 990e12),
    "a100": Card("A100, 80 GB", 85.1e9, 0.9 * 2.04e12, 0.8 * 312e12),
    "rtx4090": Card("RTX 4090, 24 GB", 25.4e9, 0.9 * 1.01e12, 0.8 * 165e12),
}


KNOWN = ("llama", "qwen2", "qwen3")
"""`model_type` of the shapes whose cost is modelled: those of the fused path."""


@dataclass(frozen=True)
class ModelShape:
    """`queries` heads, `keys` heads of keys and as many of values, all of `width`."""

    hidden: int
    inner: int
    layers: int
    queries: int
    keys: int
    width: int
    vocabulary: int
    tied: bool

    @property
    def joint(self) -> int:
        """Weights of a layer that the decoder keeps a second copy of: joint projections, gate and up."""
        return self.hidden * ((self.queries + 2 * self.keys) * self.width + 2 * self.inner)

    @property
    def layer(self) -> int:
        """Weights in a layer's products."""
        return self.joint + self.hidden * (self.queries * self.width + self.inner)

    @property
    def head(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def weights(self) -> int:
        """All but the norms', which are too few to count."""
        return self.layers * self.layer + self.head * (1 if self.tied else 2)

    @property
    def cached_numbers(self) -> int:
        """Keys and values of one token."""
        return 2 * self.layers * self.keys * self.width

    def kept_numbers(self, gradient_checkpointing: bool = False) -> float:
        """What the layers keep of one token for the backward pass, as `egpo.local.updates.micro_batches` counts it."""
        heads = (3 * self.queries + 4.5 * self.keys) * self.width
        inside = 4 * self.hidden + heads + 3 * self.inner
        return inside + 2 * self.hidden * self.layers if gradient_checkpointing else inside * self.layers


def read_shape(path: str) -> ModelShape:
    """Of the model that a recipe names; it must lie on this machine."""
    where = f"model {path}"
    file = Path(model_folder(path)).expanduser() / "config.json"
    if not file.is_file():
        raise InputError("no config.json", where=where, fix="a plan needs the model's folder on this machine")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"its config.json cannot be read ({error})", where=where, fix="is the folder whole?"
        ) from error
    if not isinstance(config, dict):
        raise InputError("its config.json is no object", where=where, fix="is the folder whole?")
    return _shape(config, where)


def _shape(config: dict[str, Any], where: str) -> ModelShape:
    if config.get("model_type") not in KNOWN:
        raise InputError(
            f"a plan does not know the cost of `{config.get('model_type')}`", where=where, fix=f"it knows {KNOWN}"
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
    )


def _count(config: dict[str, Any], key: str, where: str, usual: int | None = None) -> int:
    """`usual` where the config leaves it open; InputError where it is no number of things."""
    value = config.get(key)
    value = usual if value is None else value
    if value is None:
        raise InputError(f"its config.json lacks `{key}`", where=where, fix="is the folder whole?")
    if not isinstance(value, int) or value < 1:
        raise InputError(f"`{key}` of its config.json is {value!r:.40}", where=where, fix="it must be a whole number")
    return value


USUAL_PROMPT_TOKENS = 128


@dataclass(frozen=True)
class StepJob:
    """`response_tokens` is the mean, `longest` what there must be room for. `at_once` rows are sampled together."""

    prompts: int
    group: int
    prompt_tokens: int
    response_tokens: int
    longest: int
    at_once: int
    epochs: int = 1
    lora: bool = False
    reference: bool = False
    gradient_checkpointing: bool = False
    bytes_per_weight: int = 2

    @property
    def rows(self) -> int:
        return self.prompts * self.group

    @property
    def new_tokens(self) -> int:
        return self.rows * self.response_tokens

    @property
    def group_tokens(self) -> int:
        """Of one prompt and its responses in a pack."""
        return self.prompt_tokens + self.group * (self.response_tokens - 1)

    @classmethod
    def of(cls, config: Config, prompt_tokens: int | None, response_tokens: int | None) -> "StepJob":
        """What a recipe does not say is told: prompts are as long as it allows, and so are responses."""
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
            reference=config.update.kl > 0 and config.model.lora is None,
            gradient_checkpointing=config.model.gradient_checkpointing,
            bytes_per_weight=4 if config.model.dtype == "float32" else 2,
        )
