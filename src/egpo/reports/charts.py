"""Which metrics have a chart of their own, and the data from which the page draws them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from egpo.reports.curves import Curve, ReportedRun, rounded, thinned
from egpo.runs.metric_table import FRACTION, METRICS, Metric, find_metric

_POINTS_PER_MB = 24_000
"""Points in all curves of a page together, for each megabyte of its budget: about a fifth of the bytes."""
_MOST, _LEAST = 1000, 50


@dataclass(frozen=True)
class MetricChart:
    """One metric of all runs. `share`: it lies in [0, 1] and is shown in percent. `unit` labels the vertical axis."""

    title: str
    metric: str
    note: str
    unit: str
    share: bool = False


def chart_data(runs: Sequence[ReportedRun], budget_mb: float) -> dict[str, Any]:
    """Return the data of the page's charts, for a page of `budget_mb` megabytes.

    `runs`: the curves of each by metric; `charts`: those that some run has; `others`: the remaining metrics.
    """
    curves = [run.curves for run in runs]
    most = _points_a_curve(curves, int(_POINTS_PER_MB * budget_mb))
    metrics = sorted({name for found in curves for name in found})
    charts = _charts(metrics)
    return {
        "runs": [
            {"name": run.name, "curves": {name: _as_json(thinned(curve, most)) for name, curve in found.items()}}
            for run, found in zip(runs, curves, strict=True)
        ],
        "charts": [vars(chart) for chart in charts],
        "others": [vars(_other(name)) for name in metrics if name not in {chart.metric for chart in charts}],
        "thinned": most if any(len(curve.steps) > most for found in curves for curve in found.values()) else None,
    }


def _charts(names: Sequence[str]) -> list[MetricChart]:
    """Return the charts of the table of metrics; of a pattern, such as the validation's, one for each name."""
    found = [(row, name) for row in METRICS if row.chart for name in names if row.matches(name)]
    return [_metric_chart(row, name) for row, name in found]


def _metric_chart(row: Metric, name: str) -> MetricChart:
    assert row.chart is not None
    note = row.chart.note if row.name == name else f"{row.chart.note}: {_source(name)}"
    return MetricChart(row.chart.title, name, note, _unit(row) or row.chart.title.lower(), row.chart.percent)


def _other(name: str) -> MetricChart:
    """Return the chart of a metric that has none of its own: its name is the title."""
    row = find_metric(name)
    return MetricChart(name, name, row.meaning if row else "as recorded", (row and _unit(row)) or "value")


def _unit(row: Metric) -> str:
    return "share" if row.unit == FRACTION else row.unit


def _source(metric: str) -> str:
    """Return the data source of a validation metric, with the number of responses per problem if there are several."""
    source, _, responses = metric.removeprefix("val-core/").partition("/acc/mean@")
    return source if responses == "1" else f"{source}, {responses} responses per problem"


def _points_a_curve(curves: Sequence[Mapping[str, Curve]], num_points: int) -> int:
    count = max(1, sum(len(found) for found in curves))
    return max(_LEAST, min(_MOST, num_points // count))


def _as_json(curve: Curve) -> dict[str, Any]:
    return {"x": list(curve.steps), "y": [rounded(value) for value in curve.values]}
