"""Models in memory: load a folder, build one from tensors, check that no weight is missing or left over.

LoRA adapters are merged into their weights: W + alpha / rank * B A (Hu et al. 2021, arXiv:2106.09685).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from egpo.errors import InputError

_ADAPTER = re.compile(r"(?P<layer>.+)\.lora_(?P<side>[AB])\.(?:default\.)?weight")
_WRAPPER = "base_model.model."
_META = ("lora_train_meta.json", "lora_adapter/adapter_config.json")


@dataclass(frozen=True)
class Lora:
    """Rank and alpha of LoRA adapters in training. (The shards contain only the rank.)"""

    rank: int
    alpha: float


def has_adapters(names: Iterable[str]) -> bool:
    return any(".lora_" in name for name in names)


def read_lora(actor: Path) -> Lora:
    """Read rank and alpha from the file that verl writes beside the shards.

    InputError if alpha is not recorded: it cannot be guessed. (verl's own merger then uses 0.)
    """
    path = next((actor / name for name in _META if (actor / name).is_file()), None)
    wanted = f'{{"r": 16, "lora_alpha": 32}} with the values of the training, as {actor / _META[0]}'
    if path is None:
        what = "the checkpoint has LoRA adapters, but their alpha is not recorded"
        raise InputError(what, where=str(actor), fix=f"write a file with {wanted}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        lora = Lora(int(value["r"]), float(value["lora_alpha"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"the file has no valid rank and alpha ({error!r:.80})"
        raise InputError(what, where=str(path), fix=f"write a file with {wanted}") from error
    if lora.rank <= 0 or lora.alpha <= 0:
        what = f"rank {lora.rank} and alpha {lora.alpha:g} must both be above 0"
        raise InputError(what, where=str(path), fix=f"write a file with {wanted}")
    return lora


def folded(
    weights: Mapping[str, Tensor], lora: Lora, base: Mapping[str, Tensor] | None, where: str
) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of each weight, with its LoRA adapter merged into it, one at a time.

    `base` are the weights of the base model, for a checkpoint that contains only adapters.
    """
    plain = {_plain(name): name for name in weights if not _is_adapter(name, where)}
    source = weights if plain else base or {}
    names = plain or {name: name for name in source}
    layers = {f"{_plain(match['layer'])}.weight": match["layer"] for match in map(_ADAPTER.fullmatch, weights) if match}
    if unknown := sorted(layers.keys() - names.keys()):
        fix = (
            "check that --base is the model that the training started from"
            if base
            else "only linear layers can be merged"
        )
        raise InputError(
            f"the checkpoint has adapters for `{unknown[0]}`, but the model has no weight of that name",
            where=where,
            fix=fix,
        )
    for name, stored in names.items():
        weight = source[stored]
        yield name, weight if name not in layers else _with_delta(weight, weights, layers[name], lora, where)


def _with_delta(weight: Tensor, weights: Mapping[str, Tensor], layer: str, lora: Lora, where: str) -> Tensor:
    """Return a weight plus its adapter, added in float32: in bfloat16 a small adapter would be rounded away."""
    down, up = (_side(weights, layer, side).float() for side in "AB")
    if down.shape[0] != lora.rank or (up.shape[0], down.shape[1]) != tuple(weight.shape):
        what = f"{layer}: B {tuple(up.shape)}, A {tuple(down.shape)} and rank {lora.rank} do not fit the weight"
        raise InputError(what, where=where, fix="check that lora_train_meta.json belongs to this training")
    return torch.addmm(weight.float(), up, down, alpha=lora.alpha / lora.rank)


def _side(weights: Mapping[str, Tensor], layer: str, side: str) -> Tensor:
    for name in (f"{layer}.lora_{side}.default.weight", f"{layer}.lora_{side}.weight"):
        if name in weights:
            return weights[name]
    raise InputError(
        f"{layer} lacks one of its two adapter matrices",
        where=f"lora_{side}",
        fix="check that the checkpoint is complete",
    )


def _is_adapter(name: str, where: str) -> bool:
    if ".lora_" in name and not _ADAPTER.fullmatch(name):
        fix = "only adapters of linear layers can be merged: no DoRA, no embeddings"
        raise InputError(f"this kind of adapter is not supported: {name}", where=where, fix=fix)
    return ".lora_" in name


def _plain(name: str) -> str:
    """Return the name of a tensor in the model without adapters."""
    return name.removeprefix(_WRAPPER).replace(".base_layer.", ".")


_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.*", "*.tiktoken")

Dtype = Literal["auto", "bfloat16", "float16", "float32"]


def load_model(folder: Path, dtype: Dtype) -> PreTrainedModel:
    """Load a model folder on the CPU."""
    return _loaded(folder, str(folder), dtype=dtype, config=read_config(folder))


def build_model(folder: Path, state: dict[str, Tensor]) -> PreTrainedModel:
    """Build a model from the folder's config that uses these tensors without copying them."""
    dtype = next(tensor.dtype for tensor in state.values() if tensor.is_floating_point())
    return _loaded(folder, None, dtype=dtype, config=read_config(folder), state_dict=state)


def read_config(folder: Path) -> Any:
    """Return the config of a model folder, without the attention that it was trained with.

    verl writes the name of `override_config.attn_implementation` into config.json; where the plug-in or flash-attn is
    missing, transformers refuses to build such a model.
    """
    if not (folder / "config.json").is_file():
        fix = "copy config.json and the tokenizer files of the trained model into the folder"
        raise InputError("the folder has no config.json", where=str(folder), fix=fix)
    try:
        return AutoConfig.from_pretrained(str(folder), attn_implementation=None, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        fix = "check that the folder is complete"
        raise InputError(f"config.json cannot be read ({_first_line(error)})", where=str(folder), fix=fix) from error


def dtype_for(folder: Path, wanted: Dtype, stored: torch.dtype) -> torch.dtype:
    """Return the dtype to write. `auto` is the dtype in the config, else that of the stored tensors."""
    found: torch.dtype | None = getattr(torch, wanted) if wanted != "auto" else read_config(folder).dtype
    return found or stored


def without_tied(folder: Path, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors without the copies of tied weights: a file with both would load as a model without ties.

    InputError if a copy differs from its original.
    """
    with torch.device("meta"):
        ties: Mapping[str, str] = _class(folder)(read_config(folder)).all_tied_weights_keys
    for copy, original in ties.items():
        if copy in state and original in state and not torch.equal(state[copy], state[original]):
            fix = "set tie_word_embeddings to false in config.json, if the training untied these weights"
            raise InputError(f"{copy} and {original} are tied but differ", where=str(folder), fix=fix)
    return {name: tensor for name, tensor in state.items() if ties.get(name) not in state}


def require_vocabulary(folder: Path, model: PreTrainedModel) -> None:
    """Raise InputError unless the tokenizer loads and the model has an embedding for each token."""
    fix = "copy the tokenizer files of the trained model into the folder"
    if not any(path for pattern in _TOKENIZER_FILES for path in folder.glob(pattern)):
        raise InputError(
            "the folder has no tokenizer", where=str(folder), fix=fix
        )  # transformers would create an empty one
    try:
        num_known = len(AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False))
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise InputError(
            f"the tokenizer cannot be loaded ({_first_line(error)})", where=str(folder), fix=fix
        ) from error
    num_rows = model.get_input_embeddings().weight.shape[0]
    if num_known > num_rows:
        what = f"the tokenizer has {num_known} tokens, but the model has embeddings for only {num_rows}"
        raise InputError(what, where=str(folder), fix=fix)


def _loaded(folder: Path, name: str | None, **settings: Any) -> PreTrainedModel:
    try:
        with _quiet():
            model, info = _class(folder).from_pretrained(
                name,
                **settings,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                local_files_only=True,
                trust_remote_code=False,
            )
    except (OSError, ValueError, RuntimeError, SafetensorError, UnpicklingError) as error:
        fix = "check that the folder is complete, or choose another --step"
        raise InputError(f"the model cannot be loaded ({_first_line(error)})", where=str(folder), fix=fix) from error
    _require_every_weight(info, folder)
    return model.eval()


def _class(folder: Path) -> Any:
    config = read_config(folder)
    name = (config.architectures or [""])[0]
    if not hasattr(transformers, name):
        version = transformers.__version__
        unknown = f"the model class `{name}` is not part of transformers {version}"
        what = unknown if name else "config.json names no model class (`architectures`)"
        fix = "only models that come with transformers can be merged: code from a checkpoint is not run"
        raise InputError(what, where=str(folder), fix=fix)
    return getattr(transformers, name)


def _require_every_weight(info: Mapping[str, Any], folder: Path) -> None:
    faults = []
    for kind in ("missing", "unexpected", "mismatched"):
        names = sorted(str(name if isinstance(name, str) else name[0]) for name in info[f"{kind}_keys"])
        if names:
            faults.append(f"{len(names)} {kind}, such as {names[0]}")
    if faults:
        fix = "check that config.json belongs to the trained model"
        raise InputError(f"the weights do not match the config: {'; '.join(faults)}", where=str(folder), fix=fix)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' progress bars and loading reports during the block: faults are raised as errors."""
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
