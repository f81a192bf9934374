"""The learning curves of a task as SVG: accuracy and entropy over the training steps, one line per method.

A line is the mean over the seeds, the band around it reaches from the lowest to the highest seed. What is measured on
the training batch is averaged over neighbouring steps, because it varies with the problems. Only attributes are used,
no style sheet, so that the figure can stand in a page whose policy forbids others.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean
from typing import Any

from egpo.reports.curves import is_validation
from egpo.runs.metric_table import ACCURACY, ENTROPY
from egpo.runs.stored import StoredRun, step_of

WIDTH, PANEL_WIDTH, PANEL_HEIGHT, LEFT, TOP, COLUMN = 860, 350, 200, 52, 46, 430
COLOURS = ("#5c6370", "#2f6fd0", "#c0561e", "#0a8a66", "#a8509f", "#9a7b00", "#c23b4b", "#2a9db5", "#7a6ad8", "#6d8b2c")
_DASHES = ("", "7 3", "2 3")
_SMOOTH_FROM, _REACH, _TICKS, _LEGEND_COLUMNS = 30, 2, 5, 4
Curve = dict[int, float]


@dataclass(frozen=True)
class CurvePanel:
    """One chart. `smooth`: averaged over neighbouring steps, if there are many."""

    title: str
    read: Callable[[Mapping[str, Any]], float | None]
    smooth: bool = True


def _validation(line: Mapping[str, Any]) -> float | None:
    return next((100 * value for name, value in line.items() if is_validation(name)), None)


def _training(line: Mapping[str, Any]) -> float | None:
    return 100 * line[ACCURACY] if ACCURACY in line else None


HELD_OUT = CurvePanel("Accuracy on held-out problems, %", _validation, smooth=False)
OF_BATCH = CurvePanel("Accuracy on training batches, %", _training)
OF_TOKENS = CurvePanel("Entropy, nats per token, training batches", lambda line: line.get(ENTROPY))


def learning_curves(task: str, runs: Mapping[str, Sequence[StoredRun]]) -> str:
    """Return the figure of a task from the runs of each method. Without a validation, training accuracy is shown."""
    validated = any(_validation(line) is not None for found in runs.values() for run in found for line in run.metrics)
    panels = (HELD_OUT if validated else OF_BATCH, OF_TOKENS)
    num_lines = math.ceil(len(runs) / _LEGEND_COLUMNS)
    height = TOP + PANEL_HEIGHT + 50 + 20 * (num_lines + 1)
    label = f"learning curves of {', '.join(runs)} on {task}"
    parts = [part for place, panel in enumerate(panels) for part in _panel(runs, panel, LEFT + COLUMN * place)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'aria-label="{escape(label)}" font-family="sans-serif" font-size="12" fill="currentColor">',
            *parts,
            *_legend(list(runs), TOP + PANEL_HEIGHT + 54),
            "</svg>",
        ]
    )


def _curves(runs: Sequence[StoredRun], panel: CurvePanel) -> list[Curve]:
    """Return the values by step, one curve per run that has the metric."""
    found = []
    for run in runs:
        curve = {step_of(line): panel.read(line) for line in run.metrics}
        found.append({step: value for step, value in curve.items() if step is not None and value is not None})
    return [_smoothed(curve) if panel.smooth and len(curve) >= _SMOOTH_FROM else curve for curve in found if curve]


def _smoothed(curve: Curve) -> Curve:
    near = range(-_REACH, _REACH + 1)
    return {step: fmean(curve[step + by] for by in near if step + by in curve) for step in curve}


@dataclass(frozen=True)
class _Axes:
    x0: int
    first: int
    last: int
    low: float
    high: float

    def x(self, step: int) -> float:
        return self.x0 + PANEL_WIDTH * (step - self.first) / max(1, self.last - self.first)

    def y(self, value: float) -> float:
        return TOP + PANEL_HEIGHT * (1 - (value - self.low) / (self.high - self.low))

    def points(self, line: Sequence[tuple[int, float]]) -> str:
        return " ".join(f"{self.x(step):.1f},{self.y(value):.1f}" for step, value in line)


def _panel(runs: Mapping[str, Sequence[StoredRun]], panel: CurvePanel, x0: int) -> Iterator[str]:
    curves = {name: _curves(found, panel) for name, found in runs.items()}
    values = [value for found in curves.values() for curve in found for value in curve.values()]
    yield f'<text x="{x0}" y="{TOP - 18}" font-size="13" font-weight="bold">{panel.title}</text>'
    if not values:
        yield f'<text x="{x0}" y="{TOP + 20}">not measured</text>'
        return
    steps = [step for found in curves.values() for curve in found for step in curve]
    step = _tick(max(values) - min(values))
    low, high = math.floor(min(values) / step) * step, math.ceil(max(values) / step) * step
    axes = _Axes(x0, min(steps), max(steps), low, high if high > low else low + step)
    yield from _grid(axes, step)
    for place, found in enumerate(curves.values()):
        yield from _band(axes, place, found)
    for place, found in enumerate(curves.values()):
        yield from _mean(axes, place, found)


def _tick(extent: float) -> float:
    """Return a round distance between grid lines, so that there are about `_TICKS` of them."""
    rough = max(extent, 1e-6) / _TICKS
    power = math.pow(10, math.floor(math.log10(rough)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)


def _grid(axes: _Axes, apart: float) -> Iterator[str]:
    for count in range(round((axes.high - axes.low) / apart) + 1):
        value = axes.low + count * apart
        y = f"{axes.y(value):.1f}"
        yield f'<path d="M{axes.x0} {y}h{PANEL_WIDTH}" stroke="currentColor" stroke-opacity="0.15"/>'
        place = f'x="{axes.x0 - 6}" y="{axes.y(value) + 4:.1f}" text-anchor="end" fill-opacity="0.7"'
        yield f"<text {place}>{round(value, 6):g}</text>"
    bottom = TOP + PANEL_HEIGHT + 16
    middle = (axes.first + axes.last) // 2
    for step in dict.fromkeys((axes.first, middle, axes.last)):
        place = f'x="{axes.x(step):.1f}" y="{bottom}" text-anchor="middle" fill-opacity="0.7"'
        yield f"<text {place}>{'step ' if step == axes.first else ''}{step}</text>"


def _shared_steps(curves: Sequence[Curve]) -> list[int]:
    return sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []


def _band(axes: _Axes, place: int, curves: Sequence[Curve]) -> Iterator[str]:
    steps = _shared_steps(curves)
    if len(curves) > 1 and steps:
        above = [(step, max(curve[step] for curve in curves)) for step in steps]
        below = [(step, min(curve[step] for curve in curves)) for step in reversed(steps)]
        yield f'<polygon points="{axes.points([*above, *below])}" fill="{_colour(place)}" fill-opacity="0.1"/>'


def _mean(axes: _Axes, place: int, curves: Sequence[Curve]) -> Iterator[str]:
    line = [(step, fmean(curve[step] for curve in curves)) for step in _shared_steps(curves)]
    if line:
        yield f'<polyline points="{axes.points(line)}" fill="none" {_stroke(place)}/>'


def _legend(names: Sequence[str], top: int) -> Iterator[str]:
    apart = (WIDTH - LEFT) // _LEGEND_COLUMNS
    for place, name in enumerate(names):
        x, y = LEFT + apart * (place % _LEGEND_COLUMNS), top + 20 * (place // _LEGEND_COLUMNS)
        yield f'<path d="M{x} {y - 4}h24" fill="none" {_stroke(place)}/>'
        yield f'<text x="{x + 30}" y="{y}">{escape(name)}</text>'
    last = top + 20 * math.ceil(len(names) / _LEGEND_COLUMNS)
    text = "line: mean of the seeds, band: lowest to highest seed"
    yield f'<text x="{LEFT}" y="{last}" fill-opacity="0.7">{text}</text>'


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def _stroke(place: int) -> str:
    dash = _DASHES[place // len(COLOURS) % len(_DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'stroke="{_colour(place)}" stroke-width="2"{dashed}'
