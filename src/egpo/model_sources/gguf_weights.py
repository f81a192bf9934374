"""The architectures of GGUF files that can be converted: their config and tensors as transformers has them.

GGUF_ARCHITECTURES is the table. To add a row, the layer must be the one of `local/models/architectures.py`, with
the tensor names of llama.cpp below. What a file has beyond that is named in an InputError: a feature that was ignored
would give a model that answers, and answers worse.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from egpo.errors import InputError
from egpo.model_sources.container import GgufFile, sorted_names

_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_FREQUENCIES = "rope_freqs.weight"
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_OTHER_FEATURES = (
    "expert_count",
    "attention.sliding_window",
    "attention.scale",
    "attention.logit_softcapping",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "embedding_scale",
    "residual_scale",
)
"""Keys of features that the layer does not have; 0 and absent mean the same."""


@dataclass(frozen=True)
class GgufArchitecture:
    """One row of the table. `interleaved`: llama.cpp's converter has reordered the rows of queries and keys."""

    model_class: str
    interleaved: bool
    head_norms: bool
    qkv_bias: bool

    def layer_names(self) -> dict[str, str]:
        """Return llama.cpp's names of the tensors of a layer, with transformers' names for them."""
        parts = {**_LAYER, **(_HEAD_NORMS if self.head_norms else {})}
        names = {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in parts.items()}
        with_bias = ("attn_q", "attn_k", "attn_v") if self.qkv_bias else ()
        return names | {f"{part}.bias": f"{_LAYER[part]}.bias" for part in with_bias}


GGUF_ARCHITECTURES = {
    "llama": GgufArchitecture("LlamaForCausalLM", interleaved=True, head_norms=False, qkv_bias=False),
    "qwen2": GgufArchitecture("Qwen2ForCausalLM", interleaved=False, head_norms=False, qkv_bias=True),
    "qwen3": GgufArchitecture("Qwen3ForCausalLM", interleaved=False, head_norms=True, qkv_bias=False),
}


@dataclass(frozen=True, eq=False)
class GgufModel:
    """A GGUF file of an architecture in the table, all of whose tensors have a place in the model."""

    file: GgufFile
    architecture: str

    @classmethod
    def of(cls, file: GgufFile) -> "GgufModel":
        """Check that the model can be converted; InputError names what stands in the way."""
        architecture = file.metadata.get("general.architecture")
        if architecture not in GGUF_ARCHITECTURES:
            known = ", ".join(GGUF_ARCHITECTURES)
            fix = f"GGUF files of {known} can be read; of other models use the folder that `save_pretrained` writes"
            raise InputError(f"the architecture `{architecture}` is not supported", where=_where(file), fix=fix)
        model = cls(file, str(architecture))
        model._require_plain()
        model._require_tensors()
        return model

    @property
    def names(self) -> dict[str, str]:
        """llama.cpp's name of each tensor of the model, with transformers' name, in the order of the file's bytes."""
        return {name: self._renamed(name) for name in sorted_names(self.file.tensors) if name != _FREQUENCIES}

    def tensor(self, name: str) -> NDArray[np.float32]:
        """Return a tensor in float32, its rows in the order of transformers."""
        weights = self.file.weights(name)
        found = _LAYER_NAME.fullmatch(name)
        if not GGUF_ARCHITECTURES[self.architecture].interleaved or found is None:
            return weights
        heads = {"attn_q": self._number("attention.head_count"), "attn_k": self._key_heads}.get(found[2])
        if heads is None:
            return weights
        return weights.reshape(heads, -1, 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)

    def config(self, stop_ids: list[int]) -> dict[str, Any]:
        """Return what `config.json` holds."""
        return {
            "architectures": [GGUF_ARCHITECTURES[self.architecture].model_class],
            "model_type": self.architecture,
            "vocab_size": self.file.tensors["token_embd.weight"].shape[0],
            "hidden_size": self._number("embedding_length"),
            "intermediate_size": self._number("feed_forward_length"),
            "num_hidden_layers": self._number("block_count"),
            "num_attention_heads": self._number("attention.head_count"),
            "num_key_value_heads": self._key_heads,
            "head_dim": self._head_width,
            "max_position_embeddings": self._number("context_length"),
            "rms_norm_eps": _short(self._number("attention.layer_norm_rms_epsilon")),
            "rope_theta": _short(self._number("rope.freq_base", 10000.0)),
            "rope_scaling": self._rope_scaling(),
            "hidden_act": "silu",
            "tie_word_embeddings": "output.weight" not in self.file.tensors,
            "bos_token_id": self.file.metadata.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": stop_ids[0] if len(stop_ids) == 1 else stop_ids,
            "dtype": "float32",
            "use_cache": True,
        }

    @property
    def _key_heads(self) -> int:
        return int(self._number("attention.head_count_kv", self._number("attention.head_count")))

    @property
    def _head_width(self) -> int:
        width = self._number("embedding_length") // self._number("attention.head_count")
        return int(self._number("attention.key_length", width))

    def _number(self, key: str, default: Any = None) -> Any:
        value = self.file.metadata.get(f"{self.architecture}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            what = f"`{self.architecture}.{key}` is {value!r:.40}, not one positive number"
            raise InputError(what, where=_where(self.file), fix="use a file that llama.cpp's converter has written")
        return value

    def _require_plain(self) -> None:
        for key in _OTHER_FEATURES:
            if value := self.file.metadata.get(f"{self.architecture}.{key}"):
                self._refuse(f"`{self.architecture}.{key}` is {value!r:.40}")
        if self._number("rope.dimension_count", self._head_width) != self._head_width:
            self._refuse("rotary positions cover only a part of each head")
        if self._number("attention.value_length", self._head_width) != self._head_width:
            self._refuse("keys and values differ in width")

    def _refuse(self, feature: str) -> None:
        fix = "use the folder that `save_pretrained` writes, if transformers can load the model"
        raise InputError(f"a feature that is not supported: {feature}", where=_where(self.file), fix=fix)

    def _require_tensors(self) -> None:
        architecture, layers = GGUF_ARCHITECTURES[self.architecture], self._number("block_count")
        needed = {f"{name}.weight" for name in _WHOLE if name != "output"}
        needed |= {f"blk.{layer}.{name}" for layer in range(int(layers)) for name in architecture.layer_names()}
        have = set(self.file.tensors) - {"output.weight", _FREQUENCIES}
        if missing := sorted(needed - have):
            fix = "use a whole file: the parts of a split one are joined by `llama-gguf-split --merge`"
            what = f"{len(missing)} tensors are missing, the first is `{missing[0]}`"
            raise InputError(what, where=_where(self.file), fix=fix)
        if extra := sorted(have - needed):
            self._refuse(f"{len(extra)} tensors without a place in {self.architecture}, the first is `{extra[0]}`")
        self._require_shapes()

    def _require_shapes(self) -> None:
        width, heads = self._number("embedding_length"), self._number("attention.head_count") * self._head_width
        inner, keys = self._number("feed_forward_length"), self._key_heads * self._head_width
        expected = {"attn_q": (heads, width), "attn_k": (keys, width), "attn_v": (keys, width)}
        expected |= {"attn_output": (width, heads), "ffn_down": (width, inner)}
        expected |= dict.fromkeys(("ffn_gate", "ffn_up"), (inner, width))
        for name, entry in self.file.tensors.items():
            found = _LAYER_NAME.fullmatch(name)
            shape = expected.get(found[2]) if found and found[3] == "weight" else None
            if shape is not None and entry.shape != shape:
                what = f"tensor `{name}` has the shape {entry.shape}, and its metadata ask for {shape}"
                raise InputError(what, where=_where(self.file), fix="use a file whose metadata fit its tensors")

    def _renamed(self, name: str) -> str:
        found = _LAYER_NAME.fullmatch(name)
        if found is None:
            part, _, kind = name.rpartition(".")
            return f"{_WHOLE[part]}.{kind}"
        inside = GGUF_ARCHITECTURES[self.architecture].layer_names()[f"{found[2]}.{found[3]}"]
        return f"model.layers.{found[1]}.{inside}"

    def _rope_scaling(self) -> dict[str, Any] | None:
        kind = self.file.metadata.get(f"{self.architecture}.rope.scaling.type", "none")
        if _FREQUENCIES in self.file.tensors:
            return self._llama3_scaling()
        if kind == "linear":
            return {"rope_type": "linear", "factor": float(self._number("rope.scaling.factor"))}
        if kind != "none":
            self._refuse(f"rotary positions of the kind `{kind}`")
        return None

    def _llama3_scaling(self) -> dict[str, Any]:
        """Return the settings of Llama 3.1 and 3.2, of which the file holds only the factors that they give."""
        factors = self.file.weights(_FREQUENCIES).reshape(-1)
        base, width = self._number("rope.freq_base", 10000.0), self._head_width
        settings = {
            "rope_type": "llama3",
            "factor": float(factors.max()),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        if not np.allclose(factors, list(_llama3_factors(base, width, settings)), rtol=1e-4):
            self._refuse("rotary frequencies that are not those of Llama 3")
        return settings


def _llama3_factors(base: float, width: int, settings: dict[str, Any]) -> Iterator[float]:
    """Yield by how much Llama 3 divides each rotary frequency."""
    low, high, length = (settings[f"{key}"] for key in (
        "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))  # fmt: skip
    for index in range(0, width, 2):
        wavelength = 2 * np.pi * base ** (index / width)
        smooth = min(max((length / wavelength - low) / (high - low), 0.0), 1.0)
        yield 1 / ((1 - smooth) / settings["factor"] + smooth)


def _short(value: float) -> float:
    """Return the shortest decimal number that is this value in float32: 1e-05 instead of 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _where(file: GgufFile) -> str:
    return f"model {file.path}"
