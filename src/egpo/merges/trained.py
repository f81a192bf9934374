"""A checkpoint's model in memory: out of shards, or out of the weights that it holds whole."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from egpo.config import load_recipe
from egpo.config.machine import require_model_place
from egpo.errors import InputError
from egpo.local.checkpoints.manifest import MANIFEST, read_manifest, verify_files
from egpo.merges.adapters import Lora, folded, has_adapters, read_lora
from egpo.merges.fingerprints import Watch
from egpo.merges.models import Dtype, build_model, dtype_for, load_model, without_tied
from egpo.merges.places import CheckpointPlace
from egpo.merges.shard_files import find_shards, has_shards
from egpo.merges.shards import ShardedWeights

WEIGHT_ENDINGS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth")


@dataclass(frozen=True)
class Origin:
    """`files` held the weights, `world_size` ranks wrote them; 0 where the model lay there whole. `lora` was folded
    in."""

    files: tuple[Path, ...]
    world_size: int = 0
    lora: Lora | None = None


@dataclass(frozen=True, eq=False)
class Trained:
    model: PreTrainedModel
    origin: Origin


def read_trained(place: CheckpointPlace, dtype: Dtype, base: str | None, watch: Watch) -> Trained:
    """Shards come first: where verl saved the model beside them, they are what the training goes on from."""
    if has_shards(place.actor):
        return _from_shards(place, dtype, base, watch)
    if (place.actor / MANIFEST).is_file():
        verify_files(place.actor, read_manifest(place.actor))
    weights = tuple(path for path in sorted(place.model.iterdir()) if path.name.endswith(WEIGHT_ENDINGS))
    if not weights:
        fix = "choose another --step, or copy the shards of every rank into it"
        raise InputError("neither shards nor weights", where=str(place.actor), fix=fix)
    return Trained(load_model(place.model, dtype), Origin(weights))


def _from_shards(place: CheckpointPlace, dtype: Dtype, base: str | None, watch: Watch) -> Trained:
    files = find_shards(place.actor)
    weights = ShardedWeights(files)
    lora = read_lora(place.actor) if has_adapters(weights) else None
    tensors: Iterable[tuple[str, Tensor]] = weights.items()
    if lora is not None:
        tensors = folded(weights, lora, _base_weights(weights, place, base), str(place.actor))
    state = _cast(tensors, place.model, dtype, len(weights), watch)
    model = build_model(place.model, without_tied(place.model, state))
    paths = tuple(files.paths[rank] for rank in sorted(files.paths))
    return Trained(model, Origin(paths, files.world_size, lora))


def _cast(
    tensors: Iterable[tuple[str, Tensor]], folder: Path, wanted: Dtype, total: int, watch: Watch
) -> dict[str, Tensor]:
    """One after the other: no more than one of them is in memory twice."""
    state: dict[str, Tensor] = {}
    dtype: torch.dtype | None = None
    for name, tensor in tensors:
        watch("shards", len(state), total)
        dtype = dtype or dtype_for(folder, wanted, tensor.dtype)
        state[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
    watch("shards", total, total)
    return state


def _base_weights(
    weights: Mapping[str, Tensor], place: CheckpointPlace, base: str | None
) -> Mapping[str, Tensor] | None:
    """None where the checkpoint has them itself."""
    if not all(".lora_" in name for name in weights):
        return None
    name = base or (load_recipe(place.run.config).model.path if place.run else None)
    if name is None:
        fix = "give the model that the training started from as --base"
        raise InputError("holds adapters only", where=str(place.actor), fix=fix)
    folder = Path(require_model_place(name, f"--base {name}")).expanduser()
    if not folder.is_dir():
        raise InputError("no such folder", where=f"--base {name}", fix="give a model folder on this machine")
    state: dict[str, Tensor] = load_model(folder, "auto").state_dict()
    return state
