"""Run folders, checkpoints and recipes that were written before the redesign of the source still work.

`before_redesign.tar.xz` was written by the last commit before the source was folded into fewer modules: a random model
of 20,000 parameters, two runs of reinforcement learning with evaluations and a probe, a run of supervised fine-tuning,
and all recipes.
"""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from egpo.config import load_config
from egpo.runs.stored import StoredRun

ARCHIVE = Path(__file__).with_name("before_redesign.tar.xz")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def egpo(folder, *words):
    done = subprocess.run(
        [sys.executable, "-m", "egpo", *words],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"egpo {' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["old_grpo", "old_egpo"])
def test_a_stored_run_is_read(unpacked, name):
    run = StoredRun.at(unpacked / "runs" / name)
    assert run.config["algorithm"]["estimator"] == name.removeprefix("old_")
    assert [line["step"] for line in run.metrics] == [0, 1, 2]  # step 0 is the validation before training
    assert list(run.checkpoints) == [2]
    assert run.provenance.seed == 0


def test_stored_runs_are_compared_listed_and_reported(unpacked):
    compared = json.loads(egpo(unpacked, "compare", "runs/old_grpo", "runs/old_egpo", "--json"))
    assert compared
    assert "old_grpo" in egpo(unpacked, "results", "runs")
    egpo(unpacked, "report", "runs/old_grpo", "runs/old_egpo", "--out", "report.html")
    assert "old_egpo" in (unpacked / "report.html").read_text()


def test_a_stored_checkpoint_is_merged_and_evaluated(unpacked):
    egpo(unpacked, "merge", "runs/old_egpo", "--out", "merged")
    assert (unpacked / "merged" / "model.safetensors").stat().st_size > 10_000
    egpo(unpacked, "eval", "runs/old_egpo", "--task", "countdown", "--problems", "2", "--n", "1", "--max-tokens", "8")


def test_a_stored_run_of_reinforcement_is_resumed(unpacked):
    run = unpacked / "runs" / "old_grpo"
    before = metrics(run)
    egpo(unpacked, "train", "runs/old_grpo/config.yaml", "steps=3", "--resume")
    after = metrics(run)
    assert after[:3] == before
    assert {"critic/acc/mean", "actor/pg_loss", "response_length/mean"} <= {*after[3]} & {*before[2]}


def test_a_stored_run_of_supervised_training_is_resumed(unpacked):
    run = unpacked / "runs" / "old_sft"
    before = metrics(run)
    steps = sorted(int(path.name.removeprefix("global_step_")) for path in (run / "checkpoints").glob("global_step_*"))
    egpo(unpacked, "sft", "runs/old_sft/config.yaml", "--resume-from", str(steps[0]))
    after = metrics(run)
    assert [line["step"] for line in after] == [line["step"] for line in before]
    assert [line for line in after if line["step"] <= steps[0]] == [line for line in before if line["step"] <= steps[0]]


def test_every_recipe_of_that_time_loads(unpacked):
    recipes = [path for path in (unpacked / "recipes_then").rglob("*.yaml") if path.parent.name != "parts"]
    assert len(recipes) > 20
    for recipe in recipes:
        load_config(recipe)
