"""kill -9 between and within the stages: the pipeline that is given again ends with the same numbers.

`EGPO_TEST_KILLS=12 pytest tests/experiments/test_kills.py` for a thorough round.
"""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from egpo.assets import resolve_model

REPOSITORY = Path(__file__).parents[2]
RECIPE = """
name: tiny
steps: 4
model: {path: %s, device: cpu}
task: {name: countdown, settings: {mode: binary, max_numbers: 3, max_number: 12, train: 64, test: 16,
       prompt_format: "Make {target} from {numbers}."}}
rollout: {prompts: 4, n: 4, max_response_tokens: 60}
update: {lr: 1e-4}
checkpoints: {every: 1, keep_last: 1, keep_best: 0}
validation: {every: 2, problems: 4}
probe: {problems: 8, n: 4}
eval: {n: 4}
"""
NUM_KILLS = int(os.environ.get("EGPO_TEST_KILLS", "4"))
MOMENTS = ["prepare", "train", "probe", "eval: base", "eval: trained"]
"""Struck once this job is recorded; `train` while it is under way."""


def start(cwd):
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "CI": "1"}
    command = [sys.executable, "-m", "egpo", "run", "recipe.yaml"]
    return subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finished(process):
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    return said


def folder(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "recipe.yaml").write_text(RECIPE % resolve_model("egpo-tiny"))
    return tmp_path / name


def reached(cwd, moment):
    run = cwd / "runs" / "tiny"
    if moment == "train":
        return (run / "metrics.jsonl").is_file() and (run / "metrics.jsonl").read_bytes().count(b"\n") >= 2
    record = run / "stages.json"
    return record.is_file() and moment in json.loads(record.read_text())["jobs"]


def strike(cwd, moment, rng):
    """False where the process was through before."""
    process = start(cwd)
    while process.poll() is None and not reached(cwd, moment):
        time.sleep(0.005)
    time.sleep(rng.random() * 0.3)
    process.kill()
    process.communicate()
    return process.returncode < 0


def numbers(cwd):
    """Every file that must be the same: data, metrics, rollouts, weights, figures and responses."""
    names = {"timings.jsonl", "provenance.json", "stages.json", "report.html", "recipe.yaml"}
    files = [path for path in sorted(cwd.rglob("*")) if path.is_file() and not path.name.startswith(".lock")]
    paths = [path for path in files if path.name not in names]
    return {str(path.relative_to(cwd)): path.read_bytes() for path in paths}


@pytest.mark.timeout(240 + 60 * NUM_KILLS)
def test_a_killed_pipeline_ends_with_the_numbers_of_one_that_was_not(tmp_path):
    whole, killed = folder(tmp_path, "whole"), folder(tmp_path, "killed")
    finished(start(whole))
    rng, struck = random.Random(0), 0
    for kill in range(NUM_KILLS):
        struck += strike(killed, MOMENTS[kill % len(MOMENTS)], rng)
    said = finished(start(killed))
    assert struck >= min(NUM_KILLS, 3)
    assert "prepare: skipped" in said
    expected, found = numbers(whole), numbers(killed)
    assert sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name)) == []
