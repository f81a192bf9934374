"""LoRA, folded into the weights it stands beside: W + alpha / rank * B A (Hu et al. 2021, arXiv:2106.09685)."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from egpo.errors import InputError

_ADAPTER = re.compile(r"(?P<layer>.+)\.lora_(?P<side>[AB])\.(?:default\.)?weight")
_WRAPPER = "base_model.model."
_META = ("lora_train_meta.json", "lora_adapter/adapter_config.json")


@dataclass(frozen=True)
class Lora:
    """What it was trained with. The shards show the rank, and nothing of alpha."""

    rank: int
    alpha: float


def has_adapters(names: Iterable[str]) -> bool:
    return any(".lora_" in name for name in names)


def read_lora(actor: Path) -> Lora:
    """As verl writes it beside the shards. Without alpha nothing can be merged: verl's own merger then takes 0."""
    path = next((actor / name for name in _META if (actor / name).is_file()), None)
    wanted = f'{{"r": 16, "lora_alpha": 32}} with the values of the training, as {actor / _META[0]}'
    if path is None:
        raise InputError("adapters, and no word of their alpha", where=str(actor), fix=f"write {wanted}")
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        lora = Lora(int(said["r"]), float(said["lora_alpha"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"says no rank and alpha ({error!r:.80})", where=str(path), fix=f"write {wanted}") from error
    if lora.rank <= 0 or lora.alpha <= 0:
        raise InputError(f"rank {lora.rank}, alpha {lora.alpha:g}", where=str(path), fix=f"write {wanted}")
    return lora


def folded(
    weights: Mapping[str, Tensor], lora: Lora, base: Mapping[str, Tensor] | None, where: str
) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor, of the plain model, one after the other. `base` has the weights where the checkpoint has the
    adapters only."""
    plain = {_plain(name): name for name in weights if not _is_adapter(name, where)}
    source = weights if plain else base or {}
    names = plain or {name: name for name in source}
    layers = {f"{_plain(match['layer'])}.weight": match["layer"] for match in map(_ADAPTER.fullmatch, weights) if match}
    if strangers := sorted(layers.keys() - names.keys()):
        fix = "is --base the model that the training started from?" if base else "only linear layers can be merged"
        raise InputError(f"adapters of a layer that has no weight: {strangers[0]}", where=where, fix=fix)
    for name, stored in names.items():
        weight = source[stored]
        yield name, weight if name not in layers else _with_delta(weight, weights, layers[name], lora, where)


def _with_delta(weight: Tensor, weights: Mapping[str, Tensor], layer: str, lora: Lora, where: str) -> Tensor:
    """In float32, whatever the weights are kept in: a small delta would be lost in bfloat16 before it is added."""
    down, up = (_side(weights, layer, side).float() for side in "AB")
    if down.shape[0] != lora.rank or (up.shape[0], down.shape[1]) != tuple(weight.shape):
        what = f"{layer}: B {tuple(up.shape)}, A {tuple(down.shape)} and rank {lora.rank} do not fit the weight"
        raise InputError(what, where=where, fix="is lora_train_meta.json of this training?")
    return torch.addmm(weight.float(), up, down, alpha=lora.alpha / lora.rank)


def _side(weights: Mapping[str, Tensor], layer: str, side: str) -> Tensor:
    for name in (f"{layer}.lora_{side}.default.weight", f"{layer}.lora_{side}.weight"):
        if name in weights:
            return weights[name]
    raise InputError(f"{layer} has half an adapter", where=f"lora_{side}", fix="is the checkpoint whole?")


def _is_adapter(name: str, where: str) -> bool:
    if ".lora_" in name and not _ADAPTER.fullmatch(name):
        fix = "only adapters of linear layers can be merged: no DoRA, no embeddings"
        raise InputError(f"an adapter of a kind that is not known here: {name}", where=where, fix=fix)
    return ".lora_" in name


def _plain(name: str) -> str:
    """The name that a layer has without adapters."""
    return name.removeprefix(_WRAPPER).replace(".base_layer.", ".")
