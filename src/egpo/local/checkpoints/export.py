"""The model as others load it: transformers, vLLM, or the next run."""

import shutil
from pathlib import Path

from torch import Tensor

from egpo.local.policies.lora import adapter_state, merged_state
from egpo.local.policies.policy import Policy
from egpo.local.quiet import without_progress_bars


def export_policy(policy: Policy, folder: Path) -> None:
    """Config, weights as they are trained, generation config, tokenizer and chat template. Adapters are merged."""
    state: dict[str, Tensor] | None = merged_state(policy.model) if adapter_state(policy.model) else None
    with without_progress_bars():
        policy.model.save_pretrained(folder, state_dict=state)
        policy.tokenizer.save_pretrained(folder)
    for path in folder.glob("*.safetensors"):
        shutil.copymode(folder / "config.json", path)  # safetensors leaves files that only their owner may read
