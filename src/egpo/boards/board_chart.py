"""The learning curves of a task as SVG: accuracy and entropy over the training steps, one line per method.

A line is the mean over the seeds, the band around it reaches from the lowest to the highest seed; bands are left out
where they would cover each other. The baseline is a thick line in the colour of the text, and controls are dashed. What
is measured on the training batch is averaged over neighbouring steps, because it varies with the problems. Only
attributes are used, no style sheet, so that the figure can stand in a page whose policy forbids others.
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
COLOURS = (
    "#2f6fd0", "#d9601a", "#0a8a66", "#a8509f", "#b58900", "#c23b4b", "#2a9db5",
    "#7a6ad8", "#6d8b2c", "#e377c2", "#8c564b", "#e8998d", "#8a8f98",
)  # fmt: skip
_DASHES, _DASHED = ("", "9 3", "2 3"), "5 4"
_SMOOTH_FROM, _REACH, _TICKS, _LEGEND_COLUMNS, _MOST_BANDS = 30, 2, 5, 4, 6
Curve = dict[int, float]


@dataclass(frozen=True)
class CurvePanel:
    """One chart. `smooth`: averaged over neighbouring steps, if there are many."""

    title: str
    read: Callable[[Mapping[str, Any]], float | None]
    smooth: bool = True


@dataclass(frozen=True)
class ChartLine:
    """A method and its runs. `place`: its place among the methods, which gives the colour; None for the baseline."""

    name: str
    runs: Sequence[StoredRun]
    place: int | None
    is_control: bool = False

    @property
    def colour(self) -> str:
        return "currentColor" if self.place is None else COLOURS[self.place % len(COLOURS)]

    @property
    def stroke(self) -> str:
        dash = _DASHED if self.is_control else _DASHES[(self.place or 0) // len(COLOURS) % len(_DASHES)]
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        width = "3" if self.place is None else "1.8"
        return f'stroke="{self.colour}" stroke-width="{width}" stroke-linejoin="round"{dashed}'


def _validation(line: Mapping[str, Any]) -> float | None:
    return next((100 * value for name, value in line.items() if is_validation(name)), None)


def _training(line: Mapping[str, Any]) -> float | None:
    return 100 * line[ACCURACY] if ACCURACY in line else None


HELD_OUT = CurvePanel("Accuracy on held-out problems, %", _validation, smooth=False)
OF_BATCH = CurvePanel("Accuracy on training batches, %", _training)
OF_TOKENS = CurvePanel("Entropy, nats per token, training batches", lambda line: line.get(ENTROPY))


def learning_curves(task: str, methods: Sequence[ChartLine]) -> str:
    """Return the figure of a task, with a legend in the order of `methods`. Without a validation, training accuracy is
    shown."""
    validated = any(_validation(line) is not None for one in methods for run in one.runs for line in run.metrics)
    panels = (HELD_OUT if validated else OF_BATCH, OF_TOKENS)
    num_lines = math.ceil(len(methods) / _LEGEND_COLUMNS)
    height = TOP + PANEL_HEIGHT + 50 + 20 * (num_lines + 1)
    label = f"learning curves of {', '.join(one.name for one in methods)} on {task}"
    parts = [part for place, panel in enumerate(panels) for part in _panel(methods, panel, LEFT + COLUMN * place)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'aria-label="{escape(label)}" font-family="sans-serif" font-size="12" fill="currentColor">',
            *parts,
            *_legend(methods, TOP + PANEL_HEIGHT + 54),
            "</svg>",
        ]
    )


def as_file(svg: str) -> str:
    """Return a figure as a file of its own: with a white ground, since it does not know the colours of a page."""
    opening, rest = svg.split("\n", 1)
    ground = '<rect width="100%" height="100%" rx="6" fill="#ffffff"/>'
    return f'{opening.replace("<svg ", """<svg color="#222222" """, 1)}\n{ground}\n{rest}\n'


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


def _panel(methods: Sequence[ChartLine], panel: CurvePanel, x0: int) -> Iterator[str]:
    curves = [_curves(one.runs, panel) for one in methods]
    values = [value for found in curves for curve in found for value in curve.values()]
    yield f'<text x="{x0}" y="{TOP - 18}" font-size="13" font-weight="bold">{panel.title}</text>'
    if not values:
        yield f'<text x="{x0}" y="{TOP + 20}">not measured</text>'
        return
    steps = [step for found in curves for curve in found for step in curve]
    step = _tick(max(values) - min(values))
    low, high = math.floor(min(values) / step) * step, math.ceil(max(values) / step) * step
    axes = _Axes(x0, min(steps), max(steps), low, high if high > low else low + step)
    yield from _grid(axes, step)
    for one, found in zip(methods, curves, strict=True):
        if len(methods) <= _MOST_BANDS:
            yield from _band(axes, one, found)
    drawn = sorted(zip(methods, curves, strict=True), key=lambda pair: pair[0].place is None)
    for one, found in drawn:  # the baseline last, above the others
        yield from _mean(axes, one, found)


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


def _band(axes: _Axes, one: ChartLine, curves: Sequence[Curve]) -> Iterator[str]:
    steps = _shared_steps(curves)
    if len(curves) > 1 and steps:
        above = [(step, max(curve[step] for curve in curves)) for step in steps]
        below = [(step, min(curve[step] for curve in curves)) for step in reversed(steps)]
        yield f'<polygon points="{axes.points([*above, *below])}" fill="{one.colour}" fill-opacity="0.1"/>'


def _mean(axes: _Axes, one: ChartLine, curves: Sequence[Curve]) -> Iterator[str]:
    line = [(step, fmean(curve[step] for curve in curves)) for step in _shared_steps(curves)]
    if line:
        yield f'<polyline points="{axes.points(line)}" fill="none" {one.stroke}/>'


def _legend(methods: Sequence[ChartLine], top: int) -> Iterator[str]:
    """Yield the names column by column, so that the order of `methods` is read downwards."""
    apart, height = (WIDTH - LEFT) // _LEGEND_COLUMNS, math.ceil(len(methods) / _LEGEND_COLUMNS)
    for place, one in enumerate(methods):
        x, y = LEFT + apart * (place // height), top + 20 * (place % height)
        yield f'<path d="M{x} {y - 4}h24" fill="none" {one.stroke}/>'
        yield f'<text x="{x + 30}" y="{y}">{escape(one.name)}</text>'
    bands = ", band: lowest to highest seed" if len(methods) <= _MOST_BANDS else ""
    marks = "; thick: the baseline" + ("; dashed: a control" if any(one.is_control for one in methods) else "")
    text = f"line: mean of the seeds{bands}; in the order of the final accuracy{marks}"
    yield f'<text x="{LEFT}" y="{top + 20 * height}" fill-opacity="0.7">{text}</text>'
