"""The figures of the algorithm pages: reward and entropy over the steps of real runs, as SVG files in docs/images.

    python -m website.figures RUNS    reads the runs countdown-ESTIMATOR-SEED in the folder RUNS, and draws them
    python -m website.figures         draws the stored curves again

The curves are stored in docs/images/countdown_tiny.csv. docs/algorithms/grpo.md says how the runs were made.
"""

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
CURVES = IMAGES / "countdown_tiny.csv"
ESTIMATORS = ("grpo", "egpo", "egpo_calibrated")
METRICS = {
    "reward": "critic/score/mean",
    "entropy_thinking": "entropy/thinking",
    "entropy_answer": "entropy/answer",
    "response_length": "response_length/mean",
}
"""Columns of the file of curves, and the metrics that they hold."""

COLOURS = {"grpo": "#5c6370", "egpo": "#2f5fd0", "egpo_calibrated": "#b3541e"}
WIDTH, HEIGHT, PANEL_WIDTH, PANEL_HEIGHT, LEFT, TOP = 760, 300, 310, 190, 52, 46


@dataclass(frozen=True)
class Panel:
    """One chart of a figure: a column of the file of curves over the steps."""

    title: str
    column: str
    unit: str


REWARD = Panel("Reward", "reward", "mean of 128 responses")
FIGURES = {
    "grpo": (("grpo",), (REWARD, Panel("Response length", "response_length", "tokens"))),
    "egpo": (("grpo", "egpo"), (REWARD, Panel("Entropy of the thinking", "entropy_thinking", "nats per token"))),
    "egpo_calibrated": (
        ("grpo", "egpo_calibrated"),
        (REWARD, Panel("Entropy of the answer", "entropy_answer", "nats per token")),
    ),
}
"""Estimators and panels of each figure."""

Row = dict[str, str]


def read_runs(folder: Path) -> list[Row]:
    """Return the curves of all runs in the folder, one row per step."""
    rows = []
    for run in sorted(folder.glob("countdown-*-*")):
        _, estimator, seed = run.name.split("-")
        for line in (run / "metrics.jsonl").read_text().splitlines():
            metrics = json.loads(line)
            if METRICS["reward"] in metrics:
                values = {column: f"{metrics[name]:.4f}" for column, name in METRICS.items()}
                rows.append({"estimator": estimator, "seed": seed, "step": str(metrics["step"]), **values})
    return rows


def write_curves(rows: Sequence[Row]) -> None:
    """Write the rows to the file of curves."""
    with CURVES.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["estimator", "seed", "step", *METRICS], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def stored_curves() -> list[Row]:
    """Return the rows of the file of curves."""
    with CURVES.open(newline="") as file:
        return list(csv.DictReader(file))


def figure(name: str, rows: Sequence[Row]) -> str:
    """Return a figure of FIGURES as SVG: thin lines are single runs, thick lines the mean over the seeds."""
    estimators, panels = FIGURES[name]
    drawn = [
        _panel(panel, i, [row for row in rows if row["estimator"] in estimators]) for i, panel in enumerate(panels)
    ]
    seeds = len({row["seed"] for row in rows})
    label = f"{' and '.join(panel.title.lower() for panel in panels)} of {' and '.join(estimators)} over the steps"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">',
            "<style>text{font:12px sans-serif;fill:#333}.t{font-weight:bold;font-size:13px}.n{fill:#666}</style>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#fff"/>',
            *drawn,
            *_legend(estimators, seeds),
            "</svg>\n",
        ]
    )


@dataclass(frozen=True)
class _Axes:
    """The place of a panel in the figure, and the ranges that it shows."""

    x0: int
    last_step: int
    low: float
    high: float
    tick: float

    def x(self, step: int) -> float:
        return self.x0 + PANEL_WIDTH * (step - 1) / (self.last_step - 1)

    def y(self, value: float) -> float:
        return TOP + PANEL_HEIGHT * (1 - (value - self.low) / (self.high - self.low))


def _panel(panel: Panel, index: int, rows: Sequence[Row]) -> str:
    values = [float(row[panel.column]) for row in rows]
    last = max(int(row["step"]) for row in rows)
    axes = _Axes(LEFT + index * (PANEL_WIDTH + 64), last, *scale(min(values), max(values)))
    estimators = sorted({row["estimator"] for row in rows}, key=ESTIMATORS.index)
    lines = [line for one in estimators for line in _lines(axes, one, _curves(rows, one, panel.column))]
    return "\n".join([*_grid(axes, panel), *lines])


def _grid(axes: _Axes, panel: Panel) -> list[str]:
    bottom, right = TOP + PANEL_HEIGHT, axes.x0 + PANEL_WIDTH
    parts = [
        f'<text class="t" x="{axes.x0}" y="20">{panel.title}</text>',
        f'<text class="n" x="{axes.x0}" y="36">{panel.unit}</text>',
        f'<text class="n" x="{right}" y="{bottom + 33}" text-anchor="end">training step</text>',
    ]
    for i in range(round((axes.high - axes.low) / axes.tick) + 1):
        value = axes.low + i * axes.tick
        height = axes.y(value)
        parts.append(f'<path d="M{axes.x0} {height:.1f}h{PANEL_WIDTH}" stroke="#e3e3e3"/>')
        parts.append(f'<text class="n" x="{axes.x0 - 6}" y="{height + 4:.1f}" text-anchor="end">{value:.6g}</text>')
    for step in (1, *range(10, axes.last_step + 1, 10)):
        parts.append(f'<text class="n" x="{axes.x(step):.1f}" y="{bottom + 17}" text-anchor="middle">{step}</text>')
    return parts


def _curves(rows: Sequence[Row], estimator: str, column: str) -> list[dict[int, float]]:
    """Return the values by step, one curve per seed."""
    curves: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["estimator"] == estimator:
            curves.setdefault(row["seed"], {})[int(row["step"])] = float(row[column])
    return list(curves.values())


def _lines(axes: _Axes, estimator: str, curves: list[dict[int, float]]) -> Iterator[str]:
    mean = {step: fmean(curve[step] for curve in curves) for step in curves[0]}
    for width, opacity, curve in [*((1, 0.35, curve) for curve in curves), (2.2, 1, mean)]:
        points = " ".join(f"{axes.x(step):.1f},{axes.y(value):.1f}" for step, value in sorted(curve.items()))
        style = f'fill="none" stroke="{COLOURS[estimator]}" stroke-width="{width}" stroke-opacity="{opacity}"'
        yield f'<polyline points="{points}" {style}/>'


def scale(low: float, high: float) -> tuple[float, float, float]:
    """Return round limits around the values, and the distance of the ticks."""
    ticks = [base * 10.0**power for power in range(-4, 4) for base in (1, 2, 5)]
    tick = next(one for one in ticks if (high - low) / one <= 5)
    return low // tick * tick, -(-high // tick) * tick, tick


def _legend(estimators: Sequence[str], seeds: int) -> list[str]:
    parts, x = [], LEFT
    for estimator in estimators:
        parts.append(f'<path d="M{x} {HEIGHT - 13}h22" stroke="{COLOURS[estimator]}" stroke-width="2.2"/>')
        parts.append(f'<text x="{x + 28}" y="{HEIGHT - 9}">{estimator}</text>')
        x += 48 + 7 * len(estimator)
    thin = f"thick: mean of {seeds} seeds, thin: each seed" if seeds > 1 else "one seed"
    return [*parts, f'<text class="n" x="{x}" y="{HEIGHT - 9}">{thin}</text>']


def main() -> None:
    """Store the curves of the runs, if a folder is given, and draw the figures."""
    if len(sys.argv) > 1:
        write_curves(read_runs(Path(sys.argv[1])))
    for name in FIGURES:
        (IMAGES / f"{name}.svg").write_text(figure(name, stored_curves()))


if __name__ == "__main__":
    main()
