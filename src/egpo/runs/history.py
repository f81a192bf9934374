"""The metrics of a run so far, as the health rules ask for them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from egpo.runs.metrics import finite_figures

_BOUND = 1e100
"""Larger figures count as this: their squares and sums are finite, so no rule can fail on them."""


class History:
    """Finite figures of all steps, and everything of the present one.

    A figure that is not finite is seen at its own step only: `metrics.jsonl` does not hold it, and a resumed run must
    judge as one that was not interrupted.
    """

    def __init__(self) -> None:
        self.step = -1
        self.now: Mapping[str, float] = {}
        self._values: dict[str, list[float]] = {}

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        if step <= self.step:
            raise ValueError(f"step {step} comes after step {self.step}")
        self.step, self.now = step, metrics
        for name, value in finite_figures(metrics).items():
            self._values.setdefault(name, []).append(max(-_BOUND, min(_BOUND, float(value))))

    def present(self, name: str) -> float | None:
        """The figure of this step, if it is there and finite."""
        value = self.now.get(name)
        return None if value is None or not math.isfinite(value) else float(value)

    def last(self, name: str, count: int) -> list[float]:
        """The last `count` figures of that name, or as many as there are; none where this step has none."""
        return [] if self.present(name) is None else self._values[name][-count:]

    def mean_of_last(self, name: str, count: int) -> float | None:
        """None before there are so many."""
        values = self.last(name, count)
        return fmean(values) if len(values) == count else None


@dataclass(frozen=True)
class Trend:
    """A least-squares line through a series: its change from the first point to the last, with a 95 % interval."""

    change: float
    low: float
    high: float


def trend(values: list[float]) -> Trend:
    """At least three values. The interval is change ± 2 standard errors, by the residuals: points are taken as
    independent, which the means of different batches are. A series on a line has an interval of width 0."""
    count = len(values)
    centre, mean = (count - 1) / 2, fmean(values)
    spread = sum((x - centre) ** 2 for x in range(count))
    slope = sum((x - centre) * (y - mean) for x, y in enumerate(values)) / spread
    residual = sum((y - mean - slope * (x - centre)) ** 2 for x, y in enumerate(values))
    error = math.sqrt(residual / (count - 2) / spread)
    length = count - 1
    return Trend(slope * length, (slope - 2 * error) * length, (slope + 2 * error) * length)
