"""The learning curves of a task: accuracy, reward, entropy of the thinking and length over the steps, as one SVG file.

A line is the mean over the seeds of an estimator, the band around it reaches from the lowest to the highest seed. What
is measured on the training batch varies from step to step with the problems, so it is averaged over neighbouring steps.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from egpo.runs.stored import StoredRun, step_of
from website.evidence.groups import Group
from website.figures import COLOURS, scale

WIDTH, HEIGHT = 760, 578
PANEL_WIDTH, PANEL_HEIGHT, LEFT, TOP = 306, 176, 56, 50
_COLUMN, _ROW = 374, 252
_SMOOTH_FROM, _REACH = 30, 2
_OTHER = "#3c7d3c"
Curve = dict[int, float]


@dataclass(frozen=True)
class Panel:
    """One chart: a metric over the steps. `smooth`: averaged over neighbouring steps, if there are many."""

    title: str
    unit: str
    read: Callable[[Mapping[str, Any]], float | None]
    smooth: bool = True


def _validation(line: Mapping[str, Any]) -> float | None:
    found = [value for name, value in line.items() if name.startswith("val-core/") and "/acc/" in name]
    return 100 * found[0] if found else None


PANELS = (
    Panel("Accuracy on held-out problems", "%, greedy, during training", _validation, smooth=False),
    Panel("Reward", "mean of a training batch", lambda line: line.get("critic/score/mean")),
    Panel("Entropy of the thinking", "nats per token, training batch", lambda line: line.get("entropy/thinking")),
    Panel("Response length", "tokens, training batch", lambda line: line.get("response_length/mean")),
)


def figure(group: Group) -> str:
    """Return the learning curves of a group as SVG."""
    reach = _REACH if max(run.last_step for run in group.runs) >= _SMOOTH_FROM else 0
    label = f"learning curves of {', '.join(group.by_estimator)} on {group.task}"
    parts = [part for place, panel in enumerate(PANELS) for part in _panel(group, panel, place, reach)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">',
            "<style>text{font:12px sans-serif;fill:#333}.t{font-weight:bold;font-size:13px}.n{fill:#666}</style>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#fff"/>',
            *parts,
            *_legend(group, reach),
            "</svg>\n",
        ]
    )


def curves_of(runs: Sequence[StoredRun], panel: Panel, reach: int = 0) -> list[Curve]:
    """Return the values of a panel by step, one curve per run. A run without the metric has an empty curve."""
    return [_smoothed(_curve(run, panel), reach if panel.smooth else 0) for run in runs]


def _curve(run: StoredRun, panel: Panel) -> Curve:
    found = {step_of(line): panel.read(line) for line in run.metrics}
    return {step: value for step, value in found.items() if step is not None and value is not None}


def _smoothed(curve: Curve, reach: int) -> Curve:
    """Return the mean over each step and up to `reach` steps on both sides of it."""
    return {
        step: fmean(curve[near] for near in range(step - reach, step + reach + 1) if near in curve) for step in curve
    }


@dataclass(frozen=True)
class _Axes:
    x0: int
    y0: int
    first: int
    last: int
    low: float
    high: float
    tick: float

    def x(self, step: int) -> float:
        return self.x0 + PANEL_WIDTH * (step - self.first) / max(1, self.last - self.first)

    def y(self, value: float) -> float:
        return self.y0 + PANEL_HEIGHT * (1 - (value - self.low) / (self.high - self.low))


def _panel(group: Group, panel: Panel, place: int, reach: int) -> Iterator[str]:
    x0, y0 = LEFT + _COLUMN * (place % 2), TOP + _ROW * (place // 2)
    curves = {name: curves_of(runs, panel, reach) for name, runs in group.by_estimator.items()}
    curves = {name: [curve for curve in found if curve] for name, found in curves.items()}
    values = [value for found in curves.values() for curve in found for value in curve.values()]
    yield f'<text class="t" x="{x0}" y="{y0 - 24}">{panel.title}</text>'
    if not values:
        yield f'<text class="n" x="{x0}" y="{y0 + 20}">not measured</text>'
        return
    yield f'<text class="n" x="{x0}" y="{y0 - 8}">{panel.unit}</text>'
    steps = [step for found in curves.values() for curve in found for step in curve]
    low, high = min(values), max(values)
    axes = _Axes(x0, y0, min(steps), max(steps), *scale(low, high if high > low else low + 1))
    yield from _grid(axes)
    for name, found in curves.items():
        yield from _band(axes, _colour(name), found)
    for name, found in curves.items():
        yield from _mean(axes, _colour(name), found)


def _grid(axes: _Axes) -> Iterator[str]:
    bottom, right = axes.y0 + PANEL_HEIGHT, axes.x0 + PANEL_WIDTH
    for i in range(round((axes.high - axes.low) / axes.tick) + 1):
        value = axes.low + i * axes.tick
        yield f'<path d="M{axes.x0} {axes.y(value):.1f}h{PANEL_WIDTH}" stroke="#e3e3e3"/>'
        place = f'x="{axes.x0 - 6}" y="{axes.y(value) + 4:.1f}"'
        yield f'<text class="n" {place} text-anchor="end">{round(value, 6):g}</text>'
    apart = int(scale(axes.first, axes.last)[2]) or 1
    for step in range(-(-axes.first // apart) * apart, axes.last + 1, apart):
        yield f'<text class="n" x="{axes.x(step):.1f}" y="{bottom + 16}" text-anchor="middle">{step}</text>'
    yield f'<text class="n" x="{right}" y="{bottom + 31}" text-anchor="end">training step</text>'


def _shared_steps(curves: Sequence[Curve]) -> list[int]:
    return sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []


def _band(axes: _Axes, colour: str, curves: Sequence[Curve]) -> Iterator[str]:
    steps = _shared_steps(curves)
    if len(curves) < 2 or not steps:
        return
    above = [(step, max(curve[step] for curve in curves)) for step in steps]
    below = [(step, min(curve[step] for curve in curves)) for step in reversed(steps)]
    yield f'<polygon points="{_points(axes, [*above, *below])}" fill="{colour}" fill-opacity="0.13"/>'


def _mean(axes: _Axes, colour: str, curves: Sequence[Curve]) -> Iterator[str]:
    line = [(step, fmean(curve[step] for curve in curves)) for step in _shared_steps(curves)]
    yield f'<polyline points="{_points(axes, line)}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _points(axes: _Axes, line: Sequence[tuple[int, float]]) -> str:
    return " ".join(f"{axes.x(step):.1f},{axes.y(value):.1f}" for step, value in line)


def _legend(group: Group, reach: int) -> Iterator[str]:
    x, y = LEFT, HEIGHT - 30
    for name in group.by_estimator:
        yield f'<path d="M{x} {y - 4}h22" stroke="{_colour(name)}" stroke-width="2"/>'
        yield f'<text x="{x + 28}" y="{y}">{name}</text>'
        x += 48 + 7 * len(name)
    text = f"line: mean of {len(group.seeds)} seeds, band: lowest to highest"
    text += f"; training batches: mean of {2 * reach + 1} neighbouring steps" if reach else ""
    yield f'<text class="n" x="{LEFT}" y="{y + 19}">{text}</text>'


def _colour(estimator: str) -> str:
    return COLOURS.get(estimator, _OTHER)
