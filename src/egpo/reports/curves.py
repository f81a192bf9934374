"""The runs of a report, and their metrics as curves: values by step, averaged where there are too many to draw."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from egpo.errors import InputError
from egpo.runs.metric_table import INFORMATIVE, NO_SIGNAL
from egpo.runs.stored import StoredRun, step_of, stored_runs

_DIGITS = 5  # significant ones: finer than any screen


@dataclass(frozen=True)
class Curve:
    """The values of one metric, and the steps at which they were measured, in ascending order."""

    steps: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True)
class ReportedRun:
    """A run on the page. `place` is its position among the runs, from 0; it decides the colour."""

    stored: StoredRun
    place: int

    @property
    def name(self) -> str:
        return self.stored.name

    @cached_property
    def curves(self) -> Mapping[str, Curve]:
        """One curve for each metric and each timing."""
        return curves_of([*self.stored.metrics, *self.stored.timings])


def read_runs(paths: Sequence[Path]) -> list[ReportedRun]:
    """Open the runs of a page in the given order, each once. InputError if a folder is not a run."""
    if not paths:
        raise InputError("no run given", where="egpo report", fix="give one or more run folders: egpo report runs/a")
    return [ReportedRun(run, place) for place, run in enumerate(stored_runs(paths))]


def curves_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, Curve]:
    """Return a curve for each metric name. Lines without a step and values that are not numbers are ignored."""
    found: dict[str, dict[int, float]] = {}
    for line in lines:
        if (step := step_of(line)) is not None:
            for name, value in _figures(line).items():
                found.setdefault(name, {})[step] = value
    return {name: Curve([*points], [*points.values()]) for name, points in found.items()}


def _figures(line: Mapping[str, Any]) -> dict[str, float]:
    figures = {name: value for name, value in line.items() if name != "step" and isinstance(value, int | float)}
    if NO_SIGNAL in figures:
        figures[INFORMATIVE] = 1 - figures[NO_SIGNAL]
    return figures


def is_validation(metric: str) -> bool:
    """Return whether a metric is a validation accuracy: `val-core/<source>/acc/mean@N`."""
    return metric.startswith("val-core/") and "/acc/mean@" in metric


def thinned(curve: Curve, most: int) -> Curve:
    """Reduce a curve to at most `most` points: means of equally many neighbours, each at the last of their steps."""
    count = len(curve.steps)
    if count <= most:
        return curve
    cuts = [round(part * count / most) for part in range(most + 1)]
    steps = [curve.steps[end - 1] for end in cuts[1:]]
    return Curve(steps, [fmean(curve.values[start:end]) for start, end in pairwise(cuts)])


def rounded(value: float) -> float:
    """Round to five significant digits; whole numbers become integers, which take fewer bytes in the page."""
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
