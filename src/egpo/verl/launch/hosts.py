"""The sizes of verl for the machine that it runs on: few cores, one GPU, no flash-attn.

verl's defaults are those of a node with eight GPUs and about a hundred cores: on four cores Ray waits for ever for
CPUs that do not exist. `host_settings` derives the numbers of processes, Ray's CPUs, vLLM's share of the memory and the
attention from what the machine has. It changes only what does not fit: with eight GPUs, enough GPU memory, 96 cores and
flash-attn only Ray's numbers of CPUs and GPUs are set. Keys that the recipe sets below `verl:` win.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egpo.gpus import read_gpus
from egpo.plans.splits import value_of
from egpo.processes.commands import run_limited
from egpo.support import FAST_ARCHITECTURES, GRADIENT_BYTES, MOMENT_BYTES, PACKED_ATTENTION
from egpo.verl.launch.schema.known import leaves

if TYPE_CHECKING:
    from egpo.config import Config

# Run by verl's interpreter. A container may have fewer cores (cgroup) than the machine. It imports no torch.
HOST_CODE = """
import os
from importlib.util import find_spec
def _cores():
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):
        return cores
def _memory():
    try:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None
    try:
        with open("/sys/fs/cgroup/memory.max") as file:
            return min(whole, int(file.read()))
    except (OSError, ValueError):
        return whole
host = {"cores": _cores(), "memory_bytes": _memory(), "flash_attention": find_spec("flash_attn") is not None}
"""


@dataclass(frozen=True)
class Host:
    """The machine that starts verl: cores, main memory, memory of its smallest GPU (None: unknown), and flash-attn."""

    cores: int
    flash_attention: bool
    memory_bytes: float | None = None
    gpu_bytes: float | None = None

    def reason(self, key: str) -> str:
        """Return what of this machine a setting of verl follows from."""
        if key.startswith(_MODEL):
            return "no flash-attn"
        if key.endswith("num_gpus"):
            return "verl.gpus"
        return "memory of a GPU" if key in (MEMORY_SHARE, CACHE_BYTES) else f"{self.cores} cores"

    def __str__(self) -> str:
        gpu = "GPU memory not known here" if self.gpu_bytes is None else f"{self.gpu_bytes / 2**30:.0f} GiB per GPU"
        return f"{self.cores} cores, {gpu}, {'with' if self.flash_attention else 'without'} flash-attn"


def look_at_host(python: str) -> Host:
    """Return this machine as verl's interpreter sees it, without importing torch.

    An interpreter that cannot be run counts as one without flash-attn: a dry run needs no verl.
    """
    held: Mapping[str, Any] = {}
    for one in (python, sys.executable):
        code = f"{HOST_CODE}\nimport json\nprint(json.dumps(host))"
        try:
            done = run_limited([one, "-c", code], wait="interpreter", what=f"the interpreter {one}", limit_s=60)
            held = json.loads(done.stdout)
            break
        except (OSError, ValueError, subprocess.SubprocessError):
            continue
    gpus = read_gpus()
    least = min((gpu.total_bytes for gpu in gpus), default=None) if gpus else None
    return Host(**{"cores": os.cpu_count() or 1, "flash_attention": False, **held}, gpu_bytes=least)


USUAL_WORKERS = 8
"""verl's default for storage units, reward workers, agent loop workers and workers of the data loader."""
FEW_CORES = 32
"""With fewer cores, the data loader runs in the driver, Ray starts no dashboard, and vLLM compiles nothing."""
CORES_PER_AGENT, CORES_PER_REWARD, CORES_PER_STORAGE = 4, 8, 12
"""One process of each kind for this many cores, at most `USUAL_WORKERS`. With 96 cores these are verl's defaults."""
CPUS_PER_GPU = 3
"""CPUs that verl reserves in Ray per GPU (`max_colocate_count` in verl/single_controller/ray/base.py)."""
OBJECT_STORE_BYTES = 2e9
"""Size of Ray's object store on a machine with few cores. Batches travel through TransferQueue, not through it."""
USUAL_SHARE = 0.5
"""verl's default of vLLM's share of the GPU memory."""
RESERVED_BYTES = 6e9
"""Bytes of a GPU that are kept for CUDA's contexts, NCCL and fragmentation, beside vLLM and the trainer's state."""
WEIGHT_BYTES = 4
"""Bytes per weight of the trainer: verl keeps weights, gradients and moments in float32."""

WORKSPACE_BYTES = 3e9
"""Bytes of a GPU that vLLM takes beside its weights and its cache: CUDA's context, activations, CUDA graphs."""
USUAL_ROWS = 1024
"""verl's default of `max_num_seqs`: how many sequences vLLM decodes at once."""

_MODEL, _ROLLOUT, _RAY = "actor_rollout_ref.model", "actor_rollout_ref.rollout", "ray_kwargs.ray_init"
_FSDP = "actor_rollout_ref.actor.fsdp_config"
MEMORY_SHARE = f"{_ROLLOUT}.gpu_memory_utilization"
CACHE_BYTES = f"{_ROLLOUT}.engine_kwargs.vllm.kv_cache_memory_bytes"
CONTEXT = f"{_ROLLOUT}.max_model_len"
COMPILATION = f"{_ROLLOUT}.engine_kwargs.vllm.compilation_config"
DECODING_GRAPHS = json.dumps({"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"})
"""vLLM without torch.compile, which takes its cores at every start, and with CUDA graphs for decoding alone."""
_MODEL_CONFIG = f"{_MODEL}.override_config"
ATTENTION = f"{_MODEL_CONFIG}.attn_implementation"
STORAGE_UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
RAY_CPUS = f"{_RAY}.num_cpus"


@dataclass(frozen=True)
class Processes:
    """Numbers of verl's processes by kind."""

    agents: int
    rewards: int
    storage: int
    loaders: int

    def ray_cpus(self, ranks: int) -> int:
        """Return the CPUs that Ray must have: reserved ones, and one for each process that needs one to be placed."""
        return reserved_cpus(ranks, self.storage) + self.agents + self.rewards


def reserved_cpus(ranks: int, storage: int) -> int:
    """Return the CPUs that verl reserves in Ray, and without which it waits for ever."""
    controller, driver = 1, 1
    return CPUS_PER_GPU * ranks + storage + controller + driver


def processes_for(cores: int, prompts: int) -> Processes:
    """Return how many processes fit the cores: at least one of each kind, at most verl's defaults."""
    agents, rewards, storage = (
        max(1, min(USUAL_WORKERS, cores // each)) for each in (CORES_PER_AGENT, CORES_PER_REWARD, CORES_PER_STORAGE)
    )
    return Processes(min(agents, prompts), rewards, storage, 0 if cores < FEW_CORES else USUAL_WORKERS)


def state_bytes(config: "Config") -> int:
    """Return the bytes per weight that the trainer keeps on the GPUs while vLLM samples.

    Weights under an adapter have no gradients and no moments. verl can keep the parts in main memory (offload).
    """
    weight, moments = WEIGHT_BYTES + GRADIENT_BYTES, MOMENT_BYTES
    if config.model.lora is not None:
        weight, moments = WEIGHT_BYTES, 0

    def offloads(part: str) -> bool:
        return any(value_of(config.verl.raw, f"{_FSDP}.{key}") is True for key in (part, "offload_policy"))

    return weight * (not offloads("param_offload")) + moments * (not offloads("optimizer_offload"))


def memory_share(gpu_bytes: float, state: float) -> float:
    """Return vLLM's share of the GPU memory: verl's default, or what the trainer's `state` leaves, in steps of 0.05.

    `state` is in bytes per GPU.
    """
    left = 1 - (state + RESERVED_BYTES) / gpu_bytes
    return max(0.1, min(USUAL_SHARE, int(left * 20) / 20))


def plain_shape(model: str) -> Mapping[str, Any] | None:
    """Return the config.json of a model folder whose layers all have plain causal attention; None for another model, or
    if there is no such folder."""
    try:
        shape = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
        known = shape["model_type"] in FAST_ARCHITECTURES and not shape.get("use_sliding_window")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return shape if known else None


def largest_cache_bytes(config: "Config", shape: Mapping[str, Any] | None, room: int) -> float | None:
    """Return the size of vLLM's cache of keys and values for the largest batch, whose sequences have `room` tokens.

    None where the batch is divided among several GPUs, or if the model has no plain attention in every layer.
    """
    if shape is None or config.verl.ranks > 1:
        return None
    try:
        heads = shape.get("num_key_value_heads") or shape["num_attention_heads"]
        head = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
        per_token = 2 * shape["num_hidden_layers"] * heads * head * (4 if config.model.dtype == "float32" else 2)
    except (KeyError, TypeError):
        return None
    validation = config.validation
    rows = [config.rollout.prompts * config.rollout.n, validation.problems * validation.n if validation.every else 0]
    blocks = room + 2 * _BLOCK  # each sequence fills whole blocks, and has one in advance
    return float(min(max(rows), config.rollout.rows_at_once or USUAL_ROWS) * blocks * per_token)


_BLOCK = 16
"""Tokens in a block of vLLM's cache."""


def _memory_settings(
    config: "Config", gpu_bytes: float, weights: float, cache: float | None
) -> Iterator[tuple[str, Any]]:
    """Yield vLLM's share of the memory, and the size of its cache if the largest batch needs less than the share.

    With a fixed size vLLM does not measure what is free: other programs may use the same GPU while it starts.
    """
    share = memory_share(gpu_bytes, state_bytes(config) * weights / config.verl.ranks)
    # A longer context of the user's own might not fit: vLLM refuses to start if one sequence of that length does not.
    if cache is not None and all(value_of(config.verl.raw, key) is None for key in (MEMORY_SHARE, CONTEXT)):
        needed = (cache + 4 * weights + WORKSPACE_BYTES) / gpu_bytes
        if needed < share:
            yield MEMORY_SHARE, math.ceil(needed * 100) / 100
            yield CACHE_BYTES, int(cache)
            return
    if share < USUAL_SHARE:
        yield MEMORY_SHARE, share


def attention_settings(config: "Config", *, packs: bool) -> Iterator[tuple[str, Any]]:
    """Yield the attention where flash-attn is not installed: without padding if the model's attention allows it."""
    yield ATTENTION, PACKED_ATTENTION if packs else "sdpa"
    yield f"{_MODEL}.use_remove_padding", packs
    # verl writes the keys of `model_config` into config.json; without it, all of override_config. A model that names
    # `egpo_packed` there could not be loaded where the plug-in is missing.
    written = f"{_MODEL_CONFIG}.model_config"
    given = {key: value for key, value in leaves(config.verl.raw) if key.startswith(f"{_MODEL_CONFIG}.")}
    others = {key: value for key, value in given.items() if key != ATTENTION}
    if not any(f"{key}.".startswith(f"{written}.") for key in given):
        yield from ((f"{written}{key.removeprefix(_MODEL_CONFIG)}", value) for key, value in others.items())
        if not others:
            yield written, {}


def host_settings(
    config: "Config", host: Host, weights: float, cache: float | None, *, packs: bool
) -> Iterator[tuple[str, Any]]:
    """Yield keys of verl with the values that this machine needs.

    `weights` is the model's number of weights, `cache` what `largest_cache_bytes` returns for it, `packs` whether its
    attention can be computed without padding and without flash-attn.
    """
    verl = config.verl
    # Without flash-attn, verl's default attention fails at the start.
    if not host.flash_attention and value_of(verl.raw, ATTENTION) is None:
        yield from attention_settings(config, packs=packs)
    if host.gpu_bytes is not None:
        yield from _memory_settings(config, host.gpu_bytes, weights, cache)
    if verl.address is not None:  # the sizes of a cluster are those of its nodes, set by `ray start`
        return
    processes = processes_for(host.cores, config.rollout.prompts)
    stored = replace(processes, storage=value_of(verl.raw, STORAGE_UNITS) or processes.storage)
    yield RAY_CPUS, max(host.cores, stored.ray_cpus(verl.ranks))
    yield f"{_RAY}.num_gpus", verl.gpus
    yield f"{_ROLLOUT}.agent.num_workers", processes.agents
    if processes.rewards < USUAL_WORKERS:
        yield "reward.num_workers", processes.rewards
    if processes.storage < USUAL_WORKERS:
        yield STORAGE_UNITS, processes.storage
    if host.cores < FEW_CORES:
        if value_of(verl.raw, COMPILATION) is None:
            yield COMPILATION, DECODING_GRAPHS
        yield "data.dataloader_num_workers", processes.loaders
        yield f"{_RAY}.include_dashboard", False
        yield f"{_RAY}.object_store_memory", int(min(OBJECT_STORE_BYTES, 0.3 * (host.memory_bytes or 1e12)))


STARTING_SLOWLY = {
    # Seconds that a worker may take to start: 60 are not enough when a dozen of them import vLLM on a few cores.
    "RAY_worker_register_timeout_seconds": "300",
    # Workers that Ray starts in advance are useless under verl's own environment for its workers.
    "RAY_prestart_worker_first_driver": "0",
}
"""Environment variables of Ray for a machine with few cores, unless the user has set them."""


def host_environment(config: "Config", host: Host | None) -> dict[str, str]:
    """Return the environment variables that Ray needs on this machine, as far as they are not set already."""
    if config.verl.device != "cuda" or host is None or host.cores >= FEW_CORES or config.verl.address is not None:
        return {}
    return {name: value for name, value in STARTING_SLOWLY.items() if name not in os.environ}
