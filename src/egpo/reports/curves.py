"""The figures of a run as curves: steps and values, thinned where there are more than an eye can tell apart."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from egpo.runs.readings import AGREEING

INFORMATIVE = "groups/informative_frac"
"""1 - groups/zero_variance_frac: groups whose rewards differ, from which alone something is learned."""
_DIGITS = 5  # significant ones: finer than any screen


@dataclass(frozen=True)
class Curve:
    """A value at each of some steps, in their order."""

    steps: Sequence[int]
    values: Sequence[float]


def curves_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, Curve]:
    """By the metric's name. A line that has no step, and a value that is no number, are passed over."""
    found: dict[str, dict[int, float]] = {}
    for line in lines:
        if (step := step_of(line)) is not None:
            for name, value in _figures(line).items():
                found.setdefault(name, {})[step] = value
    return {name: Curve([*points], [*points.values()]) for name, points in found.items()}


def step_of(line: Mapping[str, Any]) -> int | None:
    step = line.get("step")
    return step if isinstance(step, int) else None


def _figures(line: Mapping[str, Any]) -> dict[str, float]:
    figures = {name: value for name, value in line.items() if name != "step" and isinstance(value, int | float)}
    if AGREEING in figures:
        figures[INFORMATIVE] = 1 - figures[AGREEING]
    return figures


def is_validation(metric: str) -> bool:
    """Whether it is `val-core/<source>/acc/mean@N`."""
    return metric.startswith("val-core/") and "/acc/mean@" in metric


def thinned(curve: Curve, most: int) -> Curve:
    """At most so many points: each the mean of equally many neighbours, at the last of their steps."""
    count = len(curve.steps)
    if count <= most:
        return curve
    cuts = [round(part * count / most) for part in range(most + 1)]
    steps = [curve.steps[end - 1] for end in cuts[1:]]
    return Curve(steps, [fmean(curve.values[start:end]) for start, end in pairwise(cuts)])


def rounded(value: float) -> float:
    """To five significant digits; whole numbers as such."""
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
