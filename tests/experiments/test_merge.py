"""A run of verl's: its shards become the model that is evaluated."""

import json
import shutil
from pathlib import Path

import pytest

from tests.merges.conftest import two_shards  # noqa: F401  (a fixture)

STEP = 7
WORDS = [
    "engine=verl",
    f"steps={STEP}",
    "model.path=egpo-tiny",
    "eval.n=2",
    "eval.greedy=false",
    "eval.models=[trained]",
]


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
def test_shards_are_merged_once_and_then_evaluated(run_recipe, two_shards):  # noqa: F811
    run_recipe(*WORDS, only=["prepare"])
    actor = Path(f"runs/tiny/checkpoints/global_step_{STEP}/actor")
    shutil.copytree(two_shards, actor)
    said = run_recipe(*WORDS, only=["merge", "eval"])
    merged = Path(f"runs/tiny/merged/step_{STEP}")
    assert any(line.startswith(f"merge: {merged}: 2,") and "from 2 shards" in line for line in said), said
    figures = json.loads(Path(f"runs/tiny/evals/countdown-n2-t1-step{STEP}.json").read_text())
    assert (figures["model"], figures["step"]) == (str(merged), STEP)
    said = run_recipe(*WORDS, only=["merge", "eval"])
    assert said == ["merge: skipped, nothing has changed", "eval: trained: skipped, nothing has changed"]
    (merged / "config.json").unlink()
    assert any("output changed or missing" in line for line in run_recipe(*WORDS, only=["merge"]))
    assert (merged / "config.json").is_file()
