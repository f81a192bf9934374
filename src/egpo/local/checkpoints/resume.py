"""Conversion of a run's state to a snapshot for a checkpoint, and back, without any loss.

A snapshot has the optimizer's state, adapters, the position in the stream of problems, the state of a controller, and
that of the global random generators, which a user's task may use. The model itself is exported in the format of
transformers, for vLLM, evaluations and the next run.
"""

import base64
import hashlib
import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from egpo.config import Config, SftConfig
from egpo.local.checkpoints.checkpoint import Snapshot
from egpo.local.models.lora import adapter_state, load_adapter_state, merged_state
from egpo.local.models.policy import Policy
from egpo.local.progress_bars import without_progress_bars
from egpo.local.run import Run
from egpo.local.updates.optimizer import Optimizer
from egpo.runs.checkpoint_manifest import CHANGED_SETTINGS
from egpo.runs.differences import FREE

_OPTIMIZER, _ADAPTERS = "optimizer/", "adapter/"


def snapshot(run: Run, step: int, score: float | None) -> Snapshot:
    """Return the state of a run after `step` steps. The tensors are not copied: write them before the next step."""
    state: dict[str, Any] = {
        "stream": {"position": run.stream.position, "num_left_out": run.stream.num_left_out},
        "micro_tokens": run.budget.tokens,
        "random": random_states(),
    }
    if run.control_state:
        state["controller"] = run.control_state
    return Snapshot(step, learned_tensors(run.policy, run.optimizer), state, score)


def restore(run: Run, saved: Snapshot, model_folder: Path) -> None:
    """Put the state of a snapshot into a run that was just loaded."""
    restore_learned(run.policy, run.optimizer, saved.tensors, model_folder)
    run.stream.position = saved.state["stream"]["position"]
    run.stream.num_left_out = saved.state["stream"]["num_left_out"]
    run.budget.tokens = saved.state["micro_tokens"]
    run.control_state = saved.state.get("controller", {})
    restore_random_states(saved.state["random"])


def learned_tensors(policy: Policy, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return what training changes and the exported model does not contain: optimizer state and unmerged adapters."""
    return {
        **_prefixed(_OPTIMIZER, optimizer.state()),
        **_prefixed(_ADAPTERS, adapter_state(policy.model)),
    }


def restore_learned(policy: Policy, optimizer: Optimizer, tensors: Mapping[str, Tensor], model_folder: Path) -> None:
    """Load the optimizer's state and the adapters from `tensors`.

    If `tensors` contains no adapters, load the model's weights from `model_folder`.
    """
    adapters = _without(_ADAPTERS, tensors)
    if adapters:
        load_adapter_state(policy.model, adapters)
    else:
        load_weights(policy, model_folder)
    optimizer.load_state(_without(_OPTIMIZER, tensors))


@torch.no_grad()
def load_weights(policy: Policy, folder: Path) -> None:
    """Load weights with transformers, which handles the names and ties of the weights that it saved."""
    with without_progress_bars():
        saved = AutoModelForCausalLM.from_pretrained(folder, dtype=policy.model.dtype, trust_remote_code=False)
    policy.model.load_state_dict(saved.state_dict())


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _without(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def config_identity(config: Config | SftConfig) -> str:
    """Return a digest of the settings that a resumed run must share: those that affect the results.

    `steps` is one of them only if the learning rate depends on it. Settings at their defaults are left out, so that the
    digest stays the same when a later version adds a setting.
    """
    values = config.model_dump(mode="json", exclude={*FREE, "verl"}, exclude_defaults=True)
    for section, _, key in (name.partition(".") for name in FREE):
        if key in values.get(section, {}):  # `exclude` takes whole sections only
            del values[section][key]
            if not values[section]:
                del values[section]
    if config.update.schedule == "constant":
        values.pop("steps", None)
    return CHANGED_SETTINGS + hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def exported_weights(policy: Policy) -> dict[str, Tensor]:
    """Return the weights of the exported model, without copying those that have no adapter. Adapters are merged."""
    return merged_state(policy.model) if adapter_state(policy.model) else policy.model.state_dict()


def export_policy(policy: Policy, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write a model folder: config, weights, generation config, tokenizer and chat template.

    `weights`: what `exported_weights` returned, or copies of it. Default: those of the policy now.
    """
    state = dict(exported_weights(policy) if weights is None else weights)
    with without_progress_bars():
        policy.model.save_pretrained(folder, state_dict=state)
        policy.tokenizer.save_pretrained(folder)
    for path in folder.glob("*.safetensors"):
        shutil.copymode(folder / "config.json", path)  # safetensors makes files that only their owner may read


def seed_everything(seed: int) -> None:
    """Seed the global random generators of Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_states() -> dict[str, Any]:
    """Return the state of every global random generator, as JSON values."""
    version, words, gauss = random.getstate()
    name, key, *rest = np.random.get_state(legacy=True)
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, _to_text(torch.from_numpy(np.asarray(key).view(np.uint8).copy())), *rest],
        "torch": _to_text(torch.get_rng_state()),
        "cuda": [_to_text(state) for state in cuda],
    }


def restore_random_states(states: dict[str, Any]) -> None:
    """Set the state of every global random generator; those of GPUs only if the number of GPUs is the same."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    name, key, *rest = states["numpy"]
    np.random.set_state((name, np.frombuffer(base64.b64decode(key), dtype=np.uint32), *rest))
    torch.set_rng_state(_to_bytes(states["torch"]))
    if states["cuda"] and torch.cuda.is_available() and torch.cuda.device_count() == len(states["cuda"]):
        torch.cuda.set_rng_state_all([_to_bytes(state) for state in states["cuda"]])


def _to_text(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _to_bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
