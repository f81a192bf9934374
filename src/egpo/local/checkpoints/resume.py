"""A run's state, out to a checkpoint and back into a run, to the bit."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from egpo.config import Config, SftConfig
from egpo.local.checkpoints.checkpoint import Snapshot
from egpo.local.checkpoints.random_states import random_states, restore_random_states
from egpo.local.policies.lora import adapter_state, load_adapter_state
from egpo.local.policies.policy import Policy
from egpo.local.quiet import without_progress_bars
from egpo.local.run import Run
from egpo.local.updates.optimizer import Optimizer
from egpo.runs.differences import FREE

_OPTIMIZER, _ADAPTERS = "optimizer/", "adapter/"


def config_identity(config: Config | SftConfig) -> str:
    """A digest of the settings that a resumed run must share: all that change what is computed. `steps` is one of
    them only where the learning rate depends on it."""
    values = config.model_dump(mode="json", exclude={*FREE, "verl"})
    values.get("task", {}).pop("judge_timeout_s", None)
    if config.update.schedule == "constant":
        values.pop("steps", None)
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def snapshot(run: Run, step: int, score: float | None) -> Snapshot:
    """After `step` steps. The tensors are the run's own: to be written before it goes on."""
    state = {
        "stream": {"position": run.stream.position, "num_left_out": run.stream.num_left_out},
        "micro_tokens": run.settings.budget.tokens,
        "random": random_states(),
    }
    return Snapshot(step, learned_tensors(run.policy, run.optimizer), state, score)


def restore(run: Run, saved: Snapshot, model_folder: Path) -> None:
    """A run that was just opened goes on where the snapshot was taken."""
    restore_learned(run.policy, run.optimizer, saved.tensors, model_folder)
    run.stream.position = saved.state["stream"]["position"]
    run.stream.num_left_out = saved.state["stream"]["num_left_out"]
    run.settings.budget.tokens = saved.state["micro_tokens"]
    restore_random_states(saved.state["random"])


def learned_tensors(policy: Policy, optimizer: Optimizer) -> dict[str, Tensor]:
    """All that training changes and the exported model does not hold: the optimizer's state, and adapters unmerged."""
    return {
        **_prefixed(_OPTIMIZER, optimizer.state()),
        **_prefixed(_ADAPTERS, adapter_state(policy.model)),
    }


def restore_learned(policy: Policy, optimizer: Optimizer, tensors: Mapping[str, Tensor], model_folder: Path) -> None:
    adapters = _without(_ADAPTERS, tensors)
    if adapters:
        load_adapter_state(policy.model, adapters)
    else:
        load_weights(policy, model_folder)
    optimizer.load_state(_without(_OPTIMIZER, tensors))


@torch.no_grad()
def load_weights(policy: Policy, folder: Path) -> None:
    """Through transformers, which knows how it names and ties the weights that it saves."""
    with without_progress_bars():
        saved = AutoModelForCausalLM.from_pretrained(folder, dtype=policy.model.dtype, trust_remote_code=False)
    policy.model.load_state_dict(saved.state_dict())


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _without(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
