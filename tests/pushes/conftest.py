import shutil

import pytest

from egpo.config import load_config
from egpo.local.train import train
from tests.comparisons.folders import drawn, write_run_evaluation

SETTINGS = [
    "task.name=countdown", "model.path=egpo-tiny", "steps=2", "rollout.prompts=1", "rollout.n=2",
    "rollout.max_response_tokens=8", "checkpoints.every=1", "checkpoints.keep_last=2", "validation.every=0",
    "algorithm.estimator=egpo",
]  # fmt: skip


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory):
    """A run of two steps with checkpoints of both. To be read only."""
    folder = tmp_path_factory.mktemp("pushed_runs")
    train(load_config(None, [f"runs={folder}", "name=first", *SETTINGS]))
    return folder / "first"


@pytest.fixture
def run(trained_run, tmp_path):
    """A copy of it, with evaluations of step 2, of step 1, and of the base model on the same and on other problems."""
    run = tmp_path / "runs" / "first"
    shutil.copytree(trained_run, run)
    write_run_evaluation(run, drawn(0.6, 1), name="countdown-step2", step=2)
    write_run_evaluation(run, drawn(0.9, 1), name="countdown-step1", step=1)
    for name, data in (("base", "digest"), ("base-other", "others")):
        write_run_evaluation(run, drawn(0.2, 2), name=name, step=None, data=data, model="egpo-tiny")
    return run
