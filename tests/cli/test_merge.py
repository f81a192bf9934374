"""`egpo merge` as a user meets it."""

import json
import subprocess
import sys

from tests.merges.sharded import Sharding, save_sharded
from tests.waiting import without_heartbeats


def egpo(*words):
    command = [sys.executable, "-m", "egpo", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_merge_says_what_it_made_and_that_it_verified_it(tmp_path):
    save_sharded(tmp_path / "checkpoints" / "global_step_3" / "actor", Sharding(1))
    done = egpo("merge", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "checkpoint of step 3, merged from one shard" in done.stdout
    assert "69 tensors are bit-equal to the checkpoint" in done.stdout
    assert without_heartbeats(done.stderr) == [f"loading {tmp_path} ..."]
    told = json.loads(egpo("merge", tmp_path, "--out", tmp_path / "out", "--json").stdout)
    assert (told["step"], told["logits_difference"]) == (3, 0)


def test_a_mistake_ends_with_code_2(tmp_path):
    done = egpo("merge", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert without_heartbeats(done.stderr)[1].startswith(f"egpo: {tmp_path}: the folder is not a checkpoint")
