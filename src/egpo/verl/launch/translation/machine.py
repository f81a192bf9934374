"""What follows from the machines: ranks, the split of the model, the CPU platform, Ray."""

import re
from collections.abc import Iterator
from pathlib import Path

from egpo.config import Config
from egpo.verl.cpu import settings as cpu
from egpo.verl.launch.translation.model import model_place
from egpo.verl.launch.translation.setting import ACTOR, ROLLOUT, Setting

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
