"""Curves out of lines."""

from statistics import fmean

from hypothesis import given
from hypothesis import strategies as st

from egpo.reports.charts import chart_data
from egpo.reports.curves import Curve, curves_of, read_runs, rounded, thinned
from tests.reports.folders import write_run


@given(st.integers(1, 500), st.integers(1, 60))
def test_a_thinned_curve_keeps_its_end_and_its_mean(count, most):
    curve = Curve(list(range(count)), [float(value % 7) for value in range(count)])
    thin = thinned(curve, most)
    assert len(thin.steps) == min(count, most)
    assert thin.steps[-1] == count - 1
    assert min(curve.values) <= min(thin.values)
    assert max(thin.values) <= max(curve.values)
    if count % most == 0:
        assert abs(fmean(thin.values) - fmean(curve.values)) < 1e-9


def test_what_is_no_figure_is_passed_over():
    lines = [{"step": 1, "a": 0.5, "b": "text", "c": None}, {"a": 3.0}, {"step": 3, "a": 1}]
    assert curves_of(lines) == {"a": Curve([1, 3], [0.5, 1])}


def test_figures_keep_five_digits():
    assert [rounded(value) for value in (0.123456789, 1234567.0, 2.0, 1e-9)] == [0.12346, 1234600, 2, 1e-9]


def test_long_runs_are_thinned_within_the_bound(tmp_path):
    runs = read_runs([write_run(tmp_path / "a", steps=3000, dumps=())])
    data = chart_data(runs, 5.0)
    assert data["thinned"] == 1000
    assert sum(len(curve["x"]) for curve in data["runs"][0]["curves"].values()) <= 120_000
    assert data["runs"][0]["curves"]["critic/score/mean"]["x"][-1] == 3000
    assert chart_data(runs, 0.5)["thinned"] < 1000
