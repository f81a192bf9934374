"""Read the trained model of a checkpoint: from verl's FSDP shards, or from a whole model folder.

Each rank has a file with its part of every tensor. Files are read with `weights_only`, which refuses code, and mapped
into memory: a part is read from disk when its tensor is assembled, so the parts are never all in memory at once.
"""

import logging
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from transformers import PreTrainedModel

from egpo.config import load_recipe
from egpo.config.machine import require_model_place
from egpo.errors import InputError
from egpo.merges.models import (
    Dtype,
    Lora,
    build_model,
    dtype_for,
    folded,
    has_adapters,
    load_model,
    read_lora,
    without_tied,
)
from egpo.merges.output import Watch
from egpo.merges.places import ShardFiles, find_shards
from egpo.runs.checkpoint_manifest import MANIFEST, read_manifest, verify_files
from egpo.runs.stored import StoredCheckpoint


class ShardedWeights(Mapping[str, Tensor]):
    """A mapping of names to whole tensors. Each tensor is assembled from its shards when it is accessed."""

    def __init__(self, files: ShardFiles) -> None:
        if 0 not in files.paths:
            files.require(range(files.world_size))
        first = _load(files.paths[0])
        ranks = _ranks_of_one_copy(first, files.world_size)
        files.require(ranks)
        self._files = files
        self._parts = [first, *(_load(files.paths[rank]) for rank in ranks[1:])]
        self._require_same_names(ranks)

    def __getitem__(self, name: str) -> Tensor:
        where = f"{self._files.folder} [{name}]"
        return _whole([part[name] for part in self._parts], where)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts[0])

    def __len__(self) -> int:
        return len(self._parts[0])

    def _require_same_names(self, ranks: Sequence[int]) -> None:
        for rank, part in zip(ranks, self._parts, strict=True):
            if odd := sorted(part.keys() ^ self._parts[0].keys()):
                fix = "check that all files are from one save, or choose another --step"
                raise InputError(
                    f"a tensor is only in this file or only in that of rank 0: {odd[0]}",
                    where=str(self._files.paths[rank]),
                    fix=fix,
                )


def _load(path: Path) -> dict[str, Any]:
    try:
        with _without_mesh_warnings():
            state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        fix = "the file may be incomplete (was the disk full?): copy it again, or choose another --step"
        raise InputError(f"the file cannot be read as a shard ({reason})", where=str(path), fix=fix) from error
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise InputError(
            "the file is not a state dict (parameter names with their tensors)",
            where=str(path),
            fix="check that verl wrote this file",
        )
    return state


@contextmanager
def _without_mesh_warnings() -> Iterator[None]:
    """Silence torch's warning that the processes of a stored device mesh do not exist: the training has ended."""
    logger = logging.getLogger("torch.distributed.device_mesh")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _ranks_of_one_copy(state: Mapping[str, Tensor], world_size: int) -> list[int]:
    """Return the ranks that together have one copy of the model.

    These are the ranks of the first replica, or all ranks if the training had no replicas.
    """
    replicated = (tensor for tensor in state.values() if isinstance(tensor, DTensor) and len(tensor.placements) > 1)
    if (tensor := next(replicated, None)) is not None:
        return [int(rank) for rank in tensor.device_mesh.mesh[0].flatten()]
    return list(range(world_size))


@torch.no_grad()
def _whole(parts: Sequence[Tensor], where: str) -> Tensor:
    """Assemble a tensor from its parts. One that FSDP did not shard, such as a buffer, must be equal on all ranks."""
    first = parts[0]
    if not isinstance(first, DTensor):
        if not all(torch.equal(part, first) for part in parts[1:]):
            raise InputError(
                "a tensor that all ranks share has different values on some of them",
                where=where,
                fix="check that all files are from one save",
            )
        return first
    placement = _placement(first, where)
    local = [part.to_local() for part in parts if isinstance(part, DTensor)]
    whole = local[0] if len(local) == 1 or isinstance(placement, Replicate) else torch.cat(local, dim=placement.dim)
    if whole.shape != first.shape:
        fix = "check that all files are from one save"
        raise InputError(
            f"the parts have the shape {tuple(whole.shape)} together, not {tuple(first.shape)}", where=where, fix=fix
        )
    return whole


def _placement(tensor: DTensor, where: str) -> Shard | Replicate:
    """Return how a tensor is split among the ranks of one copy: its placement in the last dimension of the mesh."""
    *copies, last = tensor.placements
    if all(isinstance(one, Replicate) for one in copies) and (isinstance(last, Replicate) or _is_plain_shard(last)):
        assert isinstance(last, Shard | Replicate)
        return last
    fix = "only FSDP, with or without replicas, can be merged"
    raise InputError(f"unsupported sharding: {tensor.placements}", where=where, fix=fix)


def _is_plain_shard(placement: Placement) -> bool:
    """Return False for strided shards (FSDP over tensor parallelism), which some torch versions derive from Shard."""
    return type(placement) is Shard


WEIGHT_ENDINGS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth")


@dataclass(frozen=True)
class WeightSource:
    """Where the weights came from: files, and the number of ranks that wrote them; 0 for a whole model."""

    files: tuple[Path, ...]
    world_size: int = 0
    lora: Lora | None = None


@dataclass(frozen=True, eq=False)
class Trained:
    """The model of a checkpoint, and the files that it was read from."""

    model: PreTrainedModel
    origin: WeightSource


def read_trained(place: StoredCheckpoint, dtype: Dtype, base: str | None, watch: Watch) -> Trained:
    """Read the model of a checkpoint: from its shards if it has any, otherwise from its model folder.

    Shards have precedence over a model folder beside them, because the training resumes from the shards.
    """
    if place.is_sharded:
        return _from_shards(place, dtype, base, watch)
    if (place.actor / MANIFEST).is_file():
        verify_files(place.actor, read_manifest(place.actor))
    weights = tuple(path for path in sorted(place.model.iterdir()) if path.name.endswith(WEIGHT_ENDINGS))
    if not weights:
        fix = "choose another --step, or copy the shards of every rank into the folder"
        raise InputError("the checkpoint has neither shards nor weights", where=str(place.actor), fix=fix)
    return Trained(load_model(place.model, dtype), WeightSource(weights))


def _from_shards(place: StoredCheckpoint, dtype: Dtype, base: str | None, watch: Watch) -> Trained:
    files = find_shards(place.actor)
    weights = ShardedWeights(files)
    lora = read_lora(place.actor) if has_adapters(weights) else None
    tensors: Iterable[tuple[str, Tensor]] = weights.items()
    if lora is not None:
        tensors = folded(weights, lora, _base_weights(weights, place, base), str(place.actor))
    state = _cast(tensors, place.model, dtype, len(weights), watch)
    model = build_model(place.model, without_tied(place.model, state))
    paths = tuple(files.paths[rank] for rank in sorted(files.paths))
    return Trained(model, WeightSource(paths, files.world_size, lora))


def _cast(
    tensors: Iterable[tuple[str, Tensor]], folder: Path, wanted: Dtype, total: int, watch: Watch
) -> dict[str, Tensor]:
    """Return the tensors in the wanted dtype, cast one at a time, so that at most one of them is in memory twice."""
    state: dict[str, Tensor] = {}
    dtype: torch.dtype | None = None
    for name, tensor in tensors:
        watch("shards", len(state), total)
        dtype = dtype or dtype_for(folder, wanted, tensor.dtype)
        state[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
    watch("shards", total, total)
    return state


def _base_weights(
    weights: Mapping[str, Tensor], place: StoredCheckpoint, base: str | None
) -> Mapping[str, Tensor] | None:
    """Return the weights of the base model; None if the checkpoint contains them."""
    if not all(".lora_" in name for name in weights):
        return None
    name = base or (load_recipe(place.run.config).model.path if place.run else None)
    if name is None:
        fix = "give the model that the training started from as --base"
        raise InputError("the checkpoint has only adapters, without their base model", where=str(place.actor), fix=fix)
    folder = Path(require_model_place(name, f"--base {name}")).expanduser()
    if not folder.is_dir():
        raise InputError("the folder does not exist", where=f"--base {name}", fix="give a model folder on this machine")
    state: dict[str, Tensor] = load_model(folder, "auto").state_dict()
    return state
