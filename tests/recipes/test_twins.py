"""The tiny recipes from one command to a report, as small as they can be."""

import json
from pathlib import Path

import pytest

from egpo.experiments.pipeline import run_experiments
from egpo.experiments.screen import plain_screen
from egpo.experiments.stages import Selection
from egpo.experiments.validate import load_experiments
from egpo.rewards.sandbox import sandbox_status
from tests.recipes.test_recipes import EPISODES, TWINS

SMALLEST = ["steps=1", "rollout.prompts=2", "rollout.n=2", "validation.problems=2", "probe={problems: 2, n: 2}",
            "eval={problems: 4, n: 2}", "task.settings.train=16", "task.settings.test=6"]  # fmt: skip


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
@pytest.mark.parametrize("twin", [*TWINS.values(), *EPISODES])
def test_a_twin_runs_from_data_to_report(twin, tmp_path, monkeypatch):
    if twin.startswith("mixed") and not sandbox_status().ok:
        pytest.skip("programs need a sandbox")
    monkeypatch.chdir(tmp_path)
    experiments = load_experiments([twin], SMALLEST)
    run_experiments(experiments, Selection(), plain_screen(lambda line: None))
    run = experiments[0].run
    assert run.report.is_file()
    evaluations = [json.loads(path.read_text()) for path in run.evals.glob("*.json") if path.name != "probe.json"]
    assert sorted((one["step"] or 0, one["num_responses"]) for one in evaluations) == [(0, 4), (0, 8), (1, 4), (1, 8)]
    digests = json.loads(run.provenance.read_text())["data"]
    if twin in EPISODES:  # their worlds are generated when they are needed
        assert not Path("data").exists()
        return
    (data,) = Path("data").iterdir()
    files = json.loads((data / "manifest.json").read_text())["files"]
    assert digests["train"] == f"rows:{files['train.parquet']['rows_sha256']}"
