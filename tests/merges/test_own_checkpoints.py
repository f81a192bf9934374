"""Checkpoints of the embedded engine hold the model whole: merging verifies and copies."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from egpo.config import load_config
from egpo.errors import InputError
from egpo.local.train import train
from egpo.merges.merge import merge

SETTINGS = [
    "task.name=countdown", "model.path=egpo-tiny", "steps=2", "rollout.prompts=1", "rollout.n=2",
    "rollout.max_response_tokens=8", "checkpoints.every=1", "checkpoints.keep_last=2", "validation.every=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    train(load_config(None, [f"runs={folder}", "name=own", *SETTINGS, "model.lora.rank=2"]))
    return folder / "own"


def test_the_latest_checkpoint_of_a_run_becomes_a_model(run, tmp_path):
    merged = merge(run, tmp_path / "out")
    source = run / "checkpoints" / "global_step_2" / "actor" / "huggingface"
    ours, theirs = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (tmp_path / "out", source))
    assert (merged.step, merged.world_size) == (2, 0)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert merge(run, tmp_path / "one", step=1).weights_sha256 != merged.weights_sha256


def test_a_checkpoint_that_was_changed_is_refused(run, tmp_path):
    weights = run / "checkpoints" / "global_step_1" / "actor" / "huggingface" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(InputError, match="was changed after it was written"):
        merge(run, tmp_path / "out", step=1)
    assert not (tmp_path / "out").exists()
