"""verl's FSDP shards, put together: a file for every rank, in it the rank's part of each tensor.

Read as data: `weights_only` refuses a file that would run code. Mapped into memory: a part is read from the disk when
its tensor is put together, so that a model of any size passes through in pieces.

A checkpoint's model in memory: out of shards, or out of the weights that it holds whole.
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
from egpo.local.checkpoints.manifest import MANIFEST, read_manifest, verify_files
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
from egpo.runs.stored import StoredCheckpoint


class ShardedWeights(Mapping[str, Tensor]):
    """Whole tensors by name, each put together when it is asked for."""

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
                fix = "are all files of one save? choose another --step"
                raise InputError(
                    f"not the tensors that rank 0 has: {odd[0]}", where=str(self._files.paths[rank]), fix=fix
                )


def _load(path: Path) -> dict[str, Any]:
    try:
        with _without_mesh_warnings():
            state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        said = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        fix = "is the file whole? was the disk full when it was saved? copy it again, or choose another --step"
        raise InputError(f"cannot be read as a shard ({said})", where=str(path), fix=fix) from error
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise InputError("holds no tensors by name", where=str(path), fix="is it a shard of verl's?")
    return state


@contextmanager
def _without_mesh_warnings() -> Iterator[None]:
    """torch says that a mesh was read without its processes: just so, they have ended."""
    logger = logging.getLogger("torch.distributed.device_mesh")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _ranks_of_one_copy(state: Mapping[str, Tensor], world_size: int) -> list[int]:
    """All of them; with replicas of a sharded model (a mesh of `ddp` and `fsdp`) those of the first replica."""
    replicated = (tensor for tensor in state.values() if isinstance(tensor, DTensor) and len(tensor.placements) > 1)
    if (tensor := next(replicated, None)) is not None:
        return [int(rank) for rank in tensor.device_mesh.mesh[0].flatten()]
    return list(range(world_size))


@torch.no_grad()
def _whole(parts: Sequence[Tensor], where: str) -> Tensor:
    """What FSDP did not shard (buffers, say) lies with every rank in full, and must be the same everywhere."""
    first = parts[0]
    if not isinstance(first, DTensor):
        if not all(torch.equal(part, first) for part in parts[1:]):
            raise InputError("the ranks hold different values", where=where, fix="are all files of one save?")
        return first
    placement = _placement(first, where)
    local = [part.to_local() for part in parts if isinstance(part, DTensor)]
    whole = local[0] if len(local) == 1 or isinstance(placement, Replicate) else torch.cat(local, dim=placement.dim)
    if whole.shape != first.shape:
        fix = "are all files of one save?"
        raise InputError(f"parts of {tuple(first.shape)} make {tuple(whole.shape)}", where=where, fix=fix)
    return whole


def _placement(tensor: DTensor, where: str) -> Shard | Replicate:
    """How the ranks of one copy share it: the last of the mesh's dimensions, after that of the replicas."""
    *copies, last = tensor.placements
    if all(isinstance(one, Replicate) for one in copies) and (isinstance(last, Replicate) or _is_plain_shard(last)):
        assert isinstance(last, Shard | Replicate)
        return last
    fix = "only FSDP, with or without replicas, can be merged"
    raise InputError(f"sharded in a way that is not known here: {tensor.placements}", where=where, fix=fix)


def _is_plain_shard(placement: Placement) -> bool:
    """A strided shard, of FSDP over tensor parallelism, is a Shard by inheritance in some versions of torch."""
    return type(placement) is Shard


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


def read_trained(place: StoredCheckpoint, dtype: Dtype, base: str | None, watch: Watch) -> Trained:
    """Shards come first: where verl saved the model beside them, they are what the training goes on from."""
    if place.is_sharded:
        return _from_shards(place, dtype, base, watch)
    if (place.actor / MANIFEST).is_file():
        verify_files(place.actor, read_manifest(place.actor))
    weights = tuple(path for path in sorted(place.model.iterdir()) if path.name.endswith(WEIGHT_ENDINGS))
    if not weights:
        fix = "choose another --step, or copy the shards of every rank into it"
        raise InputError("neither shards nor weights", where=str(place.actor), fix=fix)
    return Trained(load_model(place.model, dtype), Origin(weights))


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
    weights: Mapping[str, Tensor], place: StoredCheckpoint, base: str | None
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
