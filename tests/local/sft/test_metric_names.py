"""Every metric that a supervised run writes has a row in the table of metrics."""

from egpo.local.sft.session import sft
from egpo.runs.metric_table import find_metric
from egpo.runs.metrics import read_metrics
from tests.local.sft.test_session import settings  # noqa: F401  (a fixture)


def test_every_metric_that_a_supervised_run_writes_has_a_row(settings, tmp_path):  # noqa: F811
    sft(settings("a", "epochs=1"))
    folder = tmp_path / "runs" / "a"
    files = [folder / "metrics.jsonl", folder / "timings.jsonl"]
    names = {name for file in files for line in read_metrics(file) for name in line} - {"step"}
    assert {"train/loss", "val/loss", "timing_s/step"} <= names
    assert sorted(name for name in names if find_metric(name) is None) == []
