"""Every metric that a real run of the local engine writes has a row in the table of metrics."""

from pathlib import Path

import pytest

from egpo.runs.metric_table import find_metric
from egpo.runs.metrics import read_metrics


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
@pytest.mark.parametrize(
    "estimator",
    ["grpo", "{estimator: egpo, egpo: {entropy_mode: response}}", "{estimator: egpo_calibrated}"],
)
def test_every_metric_that_a_run_writes_has_a_row(run_recipe, estimator):
    words = ["update.kl=0.1", "validation={every: 1, problems: 2}", "algorithm.constant_groups=drop"]
    algorithm = f"algorithm={estimator}" if "{" in estimator else f"algorithm.estimator={estimator}"
    run_recipe(algorithm, *words, only=["prepare", "train"])
    written = {name for file in ("metrics", "timings") for line in read_metrics(Path(f"runs/tiny/{file}.jsonl"))
               for name in line if name != "step"}  # fmt: skip
    assert len(written) > 30
    assert sorted(name for name in written if find_metric(name) is None) == []
