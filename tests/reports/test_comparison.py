"""A comparison in the report: shown where it belongs, and its faults told."""

import json

import pytest

from egpo.comparisons.comparison import ComparisonOptions, compare_runs
from egpo.comparisons.outputs import write_json
from egpo.errors import InputError
from egpo.reports import render_report, write_report
from tests.comparisons.folders import drawn, two_conditions, write_run, write_run_evaluation


def test_a_comparison_beside_the_runs_is_shown(tmp_path):
    runs = two_conditions(tmp_path)
    found = compare_runs(runs)
    assert 'id="comparison"' not in render_report(runs).decode()
    write_json(found, tmp_path)
    page = render_report(runs).decode()
    assert found.contrasts[0].verdict in page
    assert '<a href="#comparison">' in page
    assert "Each condition has one training run" in page


def test_it_is_not_shown_to_runs_that_it_is_not_about(tmp_path):
    runs = two_conditions(tmp_path)
    write_json(compare_runs(runs), tmp_path)
    assert 'id="comparison"' not in render_report(runs[:1]).decode()


def test_it_may_lie_elsewhere_and_is_then_named(tmp_path):
    runs = two_conditions(tmp_path / "runs")
    path = write_json(compare_runs(runs), tmp_path / "elsewhere")
    assert 'id="comparison"' in render_report([*runs, path]).decode()
    assert write_report([*runs, path]) == tmp_path / "runs" / "report.html"
    assert write_report([runs[0], path]) == runs[0] / "report.html"


def test_what_was_not_fair_is_flagged_and_names_stay_text(tmp_path):
    runs = [write_run(tmp_path / "<i>a"), write_run(tmp_path / "b", estimator="egpo", lr=3e-6)]
    for run in runs:
        write_run_evaluation(run, drawn(0.5, 0))
    write_json(compare_runs(runs, ComparisonOptions(allow=True)), tmp_path)
    page = render_report(runs).decode()
    assert "not a fair comparison" in page
    assert "setting update.lr (&lt;i&gt;a: 1e-06, b: 3e-06)" in page
    assert "<i>a" not in page.split("<script")[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("{}", "format None; this version reads format 1; write it again"),
        (json.dumps({"format": 1}), "not a comparison"),
        (json.dumps({"format": 1, "title": "", "contrasts": [3], "unfair": [], "notes": []}), "not a comparison"),
    ],
)
def test_a_file_that_is_no_comparison_is_named(tmp_path, content, message):
    (run,) = two_conditions(tmp_path)[:1]
    path = tmp_path / "compare.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        render_report([run, path])


def test_a_comparison_that_is_not_there_is_named(tmp_path):
    (run,) = two_conditions(tmp_path)[:1]
    with pytest.raises(InputError, match=r"none\.json"):
        render_report([run, tmp_path / "none.json"])
