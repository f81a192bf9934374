"""Which metrics have a chart of their own, and the data from which the page draws them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from egpo.reports.curves import INFORMATIVE, Curve, ReportedRun, is_validation, rounded, thinned
from egpo.runs.readings import (
    ACCURACY,
    ENTROPIES,
    GRAD_NORM,
    KL,
    LENGTH,
    LOSS,
    REWARD,
    TRUNCATED,
    VALIDATION_LOSS,
)

POINTS = 120_000
"""In all curves of a page together: about a megabyte."""
_MOST, _LEAST = 1000, 100


@dataclass(frozen=True)
class Chart:
    """One metric of all runs. `share`: it lies in [0, 1] and is read in percent."""

    title: str
    metric: str
    note: str
    share: bool = False


BEFORE_VALIDATION = (
    Chart("Reward", REWARD, "mean score of the step's responses"),
    Chart("Training accuracy", ACCURACY, "responses that are fully correct", share=True),
)
AFTER_VALIDATION = (
    *(
        Chart(
            f"Entropy, {segment}",
            metric,
            f"mean entropy per token, {part}, nats",
        )
        for segment, metric in ENTROPIES.items()
        for part in ["whole response" if segment == "response" else segment]
    ),
    Chart("KL from the reference", KL, "per token, nats"),
    Chart("Gradient norm", GRAD_NORM, "before clipping"),
    Chart("Response length", LENGTH, "tokens"),
    Chart("Cut off", TRUNCATED, "responses that reached the longest length", share=True),
    Chart("Informative groups", INFORMATIVE, "groups whose rewards differ", share=True),
    Chart("Loss", LOSS, "per learned token, nats"),
    Chart("Validation loss", VALIDATION_LOSS, "per learned token, nats"),
)


def chart_data(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    """`runs`: the curves of each by metric; `charts`: those that some run has; `others`: the rest, to choose from."""
    curves = [run.curves for run in runs]
    most = _points_a_curve(curves)
    metrics = sorted({name for found in curves for name in found})
    charts = [chart for chart in _charts(metrics) if chart.metric in metrics]
    return {
        "runs": [
            {"name": run.name, "curves": {name: _as_json(thinned(curve, most)) for name, curve in found.items()}}
            for run, found in zip(runs, curves, strict=True)
        ],
        "charts": [vars(chart) for chart in charts],
        "others": [name for name in metrics if name not in {chart.metric for chart in charts}],
        "thinned": most if any(len(curve.steps) > most for found in curves for curve in found.values()) else None,
    }


def _charts(metrics: Sequence[str]) -> list[Chart]:
    """A chart for each source that was validated on, under whatever name it has."""
    validated = [name for name in metrics if is_validation(name)]
    validation = [Chart("Validation accuracy", name, f"held out: {_source(name)}", share=True) for name in validated]
    return [*BEFORE_VALIDATION, *validation, *AFTER_VALIDATION]


def _source(metric: str) -> str:
    source, _, responses = metric.removeprefix("val-core/").partition("/acc/mean@")
    return source if responses == "1" else f"{source}, {responses} responses a problem"


def _points_a_curve(curves: Sequence[Mapping[str, Curve]]) -> int:
    count = max(1, sum(len(found) for found in curves))
    return max(_LEAST, min(_MOST, POINTS // count))


def _as_json(curve: Curve) -> dict[str, Any]:
    return {"x": list(curve.steps), "y": [rounded(value) for value in curve.values]}
