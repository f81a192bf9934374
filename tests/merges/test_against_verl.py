"""Ours and verl's merger make the same model, tensor for tensor."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from egpo.merges.merge import merge
from tests.merges.sharded import Sharding, save_sharded

pytestmark = pytest.mark.verl
pytest.importorskip("verl")


@pytest.mark.parametrize("num_shards", [1, 3])
def test_verl_s_merger_gives_the_same_bits(num_shards, tmp_path):
    """In bfloat16: verl's writes nothing else."""
    actor, theirs = tmp_path / "actor", tmp_path / "theirs"
    save_sharded(actor, Sharding(num_shards))
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    subprocess.run(
        [*command, "--local_dir", str(actor), "--target_dir", str(theirs)], check=True, capture_output=True, timeout=240
    )
    merge(actor, tmp_path / "ours", dtype="bfloat16")
    ours, verl_s = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    assert ours.keys() == verl_s.keys()
    assert all(torch.equal(ours[name], verl_s[name]) for name in ours)
