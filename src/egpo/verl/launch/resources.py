"""One key of verl's, its value, and where that comes from.

What is trained.

What follows from the machines: ranks, the split of the model, the CPU platform, Ray.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpo.config import Config
from egpo.config.machine import require_model_place
from egpo.verl.cpu import settings as cpu

MODEL, ACTOR = "actor_rollout_ref.model", "actor_rollout_ref.actor"
ROLLOUT, REFERENCE = "actor_rollout_ref.rollout", "actor_rollout_ref.ref"


@dataclass(frozen=True)
class Setting:
    """`source` is the key of ours that it follows from, or the reason why it is set."""

    key: str
    value: Any
    source: str


def merged(settings: Iterable[Setting]) -> list[Setting]:
    """Each key once, at its first place, with its last value."""
    return list({setting.key: setting for setting in settings}.values())


def model_settings(config: Config) -> Iterator[Setting]:
    """`model.device` is the local engine's; `init: random` and `deterministic` have been refused."""
    model = config.model
    yield Setting(f"{MODEL}.path", model_place(model.path), "model.path")
    for key in (f"{MODEL}.trust_remote_code", "data.trust_remote_code"):
        yield Setting(key, False, "code from a model folder never runs")
    yield Setting(
        f"{MODEL}.enable_gradient_checkpointing", model.gradient_checkpointing, "model.gradient_checkpointing"
    )
    for name, value in model.template.items():
        yield Setting(f"data.apply_chat_template_kwargs.{name}", value, "model.template")
    if model.dtype == "float32":
        yield from float32_settings()
    if model.lora is not None:
        yield Setting(f"{MODEL}.lora_rank", model.lora.rank, "model.lora")
        yield Setting(f"{MODEL}.lora_alpha", model.lora.alpha, "model.lora")
        yield Setting(f"{MODEL}.target_modules", list(model.lora.layers) or "all-linear", "model.lora")


def model_place(path: str) -> str:
    """A folder as an absolute path, which every process finds; a name of the hub as it is."""
    folder = Path(require_model_place(path, f"model {path}")).expanduser()
    return str(folder.absolute()) if folder.is_dir() else path


def float32_settings() -> Iterator[Setting]:
    """verl keeps float32 weights anyway and computes in bfloat16: here it computes and samples in float32, too."""
    for engine in (f"{ACTOR}.fsdp_config", f"{REFERENCE}.fsdp_config"):
        yield Setting(f"{engine}.dtype", "float32", "model.dtype")
        for part in ("param_dtype", "reduce_dtype", "buffer_dtype"):
            yield Setting(f"{engine}.mixed_precision.{part}", "fp32", "model.dtype")
    yield Setting(f"{ROLLOUT}.dtype", "float32", "model.dtype")


WEIGHTS_PER_GPU = 10e9
_NUM_WORKERS = 8


def platform_settings(config: Config, *, joins: bool) -> Iterator[Setting]:
    """What a CPU must be told. A cluster that is joined has been told of its own CPUs and GPUs when it was started."""
    if config.verl.device == "cpu":
        for key, value in cpu.OVERRIDES.items():
            name = key.removeprefix("+")
            if not (joins and name.startswith("ray_kwargs.ray_init.")):
                yield Setting(name, value, "verl.device=cpu")


def machine_settings(config: Config) -> Iterator[Setting]:
    verl, parallel = config.verl, tensor_parallel(config)
    yield Setting("trainer.device", verl.device, "verl.device")
    yield Setting("trainer.n_gpus_per_node", verl.gpus, "verl.gpus")
    yield Setting("trainer.nnodes", verl.nodes, "verl.nodes")
    yield Setting(f"{ACTOR}.strategy", "fsdp2", "what egpo is tested with")
    yield Setting(f"{ROLLOUT}.tensor_model_parallel_size", parallel, "verl.tensor_parallel, model size")
    # Ray would join whatever cluster was started last on this machine.
    yield Setting("ray_kwargs.ray_init.address", verl.address or "local", "verl.address")
    if verl.device == "cuda":
        yield Setting(f"{ROLLOUT}.agent.num_workers", min(_NUM_WORKERS, config.rollout.prompts), "rollout.prompts")


def tensor_parallel(config: Config) -> int:
    """As set; or the least divisor of a node's GPUs at which each holds 10 billion weights at most."""
    if config.verl.tensor_parallel is not None:
        return config.verl.tensor_parallel
    gpus, weights = config.verl.gpus, num_weights(model_place(config.model.path))
    divisors = [size for size in range(1, gpus + 1) if gpus % size == 0]
    return next((size for size in divisors if weights / size <= WEIGHTS_PER_GPU), gpus)


def num_weights(model: str) -> float:
    """By the size of its files (two bytes a weight); by its name, as `Qwen3-32B`; 0 where neither tells."""
    files = list(Path(model).glob("*.safetensors")) if Path(model).is_dir() else []
    if files:
        return sum(path.stat().st_size for path in files) / 2
    named = re.search(r"(\d+(?:\.\d+)?)B\b", Path(model).name, re.IGNORECASE)
    return float(named[1]) * 1e9 if named else 0.0
