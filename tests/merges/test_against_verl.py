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


BOTH = """
import runpy, sys
for actor, target in zip(sys.argv[1::2], sys.argv[2::2]):
    sys.argv = ["merge", "merge", "--backend", "fsdp", "--local_dir", actor, "--target_dir", target]
    runpy.run_module("verl.model_merger", run_name="__main__")
"""


def test_verl_s_merger_gives_the_same_bits(tmp_path):
    """Of one shard and of three, in one process, since importing verl takes longest; in bfloat16: verl's merger writes
    nothing else."""
    folders = {num_shards: tmp_path / str(num_shards) for num_shards in (1, 3)}
    for num_shards, folder in folders.items():
        save_sharded(folder / "actor", Sharding(num_shards))
    words = [str(folder / name) for folder in folders.values() for name in ("actor", "theirs")]
    subprocess.run([sys.executable, "-c", BOTH, *words], check=True, capture_output=True, timeout=240)
    for folder in folders.values():
        merge(folder / "actor", folder / "ours", dtype="bfloat16")
        ours, verl_s = (load_file(folder / name / "model.safetensors") for name in ("ours", "theirs"))
        assert ours.keys() == verl_s.keys()
        assert all(torch.equal(ours[name], verl_s[name]) for name in ours)
