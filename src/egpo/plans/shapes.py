"""The numbers of a decoder, from its config.json."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpo.config.machine import model_folder
from egpo.errors import InputError

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
        """What the layers keep of one token for the backward pass, as `egpo.local.cuda.activations` counts it."""
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
