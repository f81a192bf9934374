"""How vLLM and FSDP2 divide the GPUs and the rows of a step, and which divisions are possible."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

from egpo.errors import Fault, InputError
from egpo.plans.links import NODE, Mesh
from egpo.plans.shapes import ModelShape, StepJob


@dataclass(frozen=True)
class Split:
    """How vLLM uses the GPUs: `data_parallel` copies of the model, each on `tensor_parallel` GPUs."""

    tensor_parallel: int
    data_parallel: int

    @property
    def gpus(self) -> int:
        return self.tensor_parallel * self.data_parallel


def part_of(job: StepJob, parts: int, *, shared: bool = True) -> StepJob:
    """Return the largest share of a step's rows if it is divided into so many parts: whole groups as far as possible.

    `shared=False`: every row has a prompt of its own.
    """
    rows = -(-job.rows // parts)
    if shared and parts <= job.prompts:
        prompts = -(-job.prompts // parts)
        return replace(job, prompts=prompts, at_once=min(job.at_once, prompts * job.group))
    if shared:
        return replace(job, prompts=1, group=rows, at_once=min(job.at_once, rows))
    return replace(job, prompts=rows, group=1, at_once=min(job.at_once, rows))


def possible_splits(shape: ModelShape, gpus: int, node_gpus: int = NODE) -> list[Split]:
    """Return the splits whose groups lie within a node and divide GPUs and heads, the smallest groups first."""
    return [
        Split(size, gpus // size)
        for size in range(1, min(gpus, node_gpus) + 1)
        if gpus % size == 0 and not split_fault(shape, gpus, size, node_gpus)
    ]


def split_fault(shape: ModelShape, gpus: int, size: int, node_gpus: int = NODE) -> str:
    """Return why the model cannot be sampled in groups of `size` GPUs; empty if it can."""
    if size > gpus:
        return f"{size} tensor-parallel ranks are more than {gpus} GPUs"
    if gpus % size:
        return f"{gpus} GPUs cannot be divided into groups of {size}"
    if shape.queries % size or (shape.keys % size and size % shape.keys):
        return f"{shape.queries} query heads and {shape.keys} key-value heads cannot be divided among {size} GPUs"
    if size > node_gpus:
        return f"a group of {size} GPUs does not fit into a node of {node_gpus}"
    if gpus > node_gpus and node_gpus % size:
        return f"nodes of {node_gpus} GPUs cannot be divided into groups of {size}"
    return ""


def require_split(shape: ModelShape, gpus: int, size: int, node_gpus: int) -> None:
    if fault := split_fault(shape, gpus, size, node_gpus):
        sizes = ", ".join(str(one.tensor_parallel) for one in possible_splits(shape, gpus, node_gpus))
        raise InputError(fault, where="verl.tensor_parallel", fix=f"choose one of {sizes}")


def require_equal_parts(job: StepJob, gpus: int) -> None:
    if job.rows % gpus:
        fix = "choose rollout.prompts and rollout.n so that the GPUs get equal parts"
        raise InputError(f"{job.rows} responses cannot be divided among {gpus} GPUs", where="verl.gpus", fix=fix)


FSDP_SIZE = "actor_rollout_ref.actor.fsdp_config.fsdp_size"
REFERENCE_FSDP_SIZE = "actor_rollout_ref.ref.fsdp_config.fsdp_size"
MERGES = "actor_rollout_ref.model.lora.merge"
"""verl's key for merging the adapters into the weights before vLLM gets them."""


def possible_fsdp_sizes(gpus: int) -> list[int]:
    """Return the numbers of GPUs that can divide the weights among them, verl's default (all GPUs) first."""
    small = [size for size in range(1, isqrt(gpus) + 1) if gpus % size == 0]
    return sorted({*small, *(gpus // size for size in small)}, reverse=True)


def mesh_of(gpus: int, fsdp_size: Any = None) -> Mesh:
    """Return the mesh of an `fsdp_size`: a negative one, as verl's default of -1, and None mean all GPUs."""
    if fsdp_size is None:
        return Mesh(gpus, gpus)
    if fault := fsdp_size_fault(gpus, fsdp_size):
        raise InputError(fault.what, where=fault.where, fix=fault.fix)
    return Mesh(gpus, fsdp_size if fsdp_size > 0 else gpus)


def fsdp_size_fault(gpus: int, fsdp_size: Any, key: str = FSDP_SIZE) -> Fault | None:
    """Return why so many GPUs cannot share the weights, with the sizes that can; None if they can.

    verl takes a size above the number of GPUs for all of them without a word, divides by a size of 0, and leaves ranks
    outside of its mesh at a size that does not divide them.
    """
    whole = isinstance(fsdp_size, int) and not isinstance(fsdp_size, bool)
    if whole and (fsdp_size < 0 or (fsdp_size > 0 and gpus % fsdp_size == 0)):
        return None
    if not whole or fsdp_size == 0:
        what = f"{fsdp_size!r:.40} is not a number of GPUs"
    elif fsdp_size > gpus:
        what = f"{fsdp_size} GPUs cannot share the weights: there are {gpus}"
    else:
        what = f"{gpus} GPUs cannot be divided into groups of {fsdp_size} that share the weights"
    sizes = ", ".join(map(str, reversed(possible_fsdp_sizes(gpus))))
    return Fault(what, f"verl.{key}", f"choose one of {sizes}; -1 means all GPUs")


def value_of(raw: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key of verl in the sections of a recipe; None if it is not set."""
    for name, value in raw.items():
        if name == key:
            return value
        if key.startswith(f"{name}.") and isinstance(value, Mapping):
            found = value_of(value, key.removeprefix(f"{name}."))
            if found is not None:
                return found
    return None
