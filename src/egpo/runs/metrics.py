"""`metrics.jsonl` and `timings.jsonl`: one object a step, `step` first, the names in order, every figure exact.

The metrics of a run so far, as the health rules ask for them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from egpo.errors import InputError
from egpo.runs.json_lines import Line, LineStream, read_lines


class MetricStream:
    """The figures of a run, step by step.

    Written by Python's repr, which reads back as the same float. NaN and infinities are left out: JSON has none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = LineStream(path)

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        if "step" in metrics:
            raise ValueError("`step` is the line's own name, and no metric's")
        self._lines.append({"step": step} | finite_figures(metrics))

    def sync(self) -> None:
        """On the disk: to be called before a checkpoint that counts on these lines becomes visible."""
        self._lines.sync()

    def forget_after(self, step: int, *, gaps: bool = False) -> None:
        """Keep the lines of steps up to `step`, and not what was cut off in the middle."""
        self._lines.cut(self.size_after(step, gaps=gaps))

    def size_after(self, step: int, *, gaps: bool = False) -> int:
        """The bytes that hold the steps up to `step`.

        Steps count from 1; a line for step 0 may stand before them. Unless `gaps`, each of them must be there: a
        resumed run would otherwise have a hole in its curve (InputError).
        """
        kept = [line for line in self._read() if self._step_of(line) <= step]
        if not gaps:
            self._require_steps([line.value["step"] for line in kept], step)
        return kept[-1].end if kept else 0

    def _read(self) -> list[Line]:
        return list(read_lines(self.path)) if self.path.exists() else []

    def _step_of(self, line: Line) -> int:
        step = line.value.get("step")
        if isinstance(step, int):
            return step
        raise InputError("no `step`", where=f"{self.path}, line {line.number}", fix="the file is damaged")

    def _require_steps(self, found: list[int], step: int) -> None:
        if [number for number in found if number] == list(range(1, step + 1)) and 0 not in found[1:]:
            return
        lost = sorted(set(range(1, step + 1)) - set(found))
        what = f"no line for step {lost[0]}" if lost else "its steps do not follow each other"
        raise InputError(
            f"{what}, so the run cannot go on from step {step}",
            where=str(self.path),
            fix="restore the file, or start another run (name=...) with the checkpoint as its model.path",
        )


def finite_figures(metrics: Mapping[str, float]) -> dict[str, float]:
    """What JSON can hold, as plain numbers, in the order of the names. Whole numbers stay whole."""
    return {name: _plain(value) for name, value in sorted(metrics.items()) if math.isfinite(value)}


def _plain(value: float) -> float:
    return int(value) if isinstance(value, int) else float(value)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Every whole line, as it stands. A last line that is still being written is left out; garbage is an error."""
    return [line.value for line in read_lines(path)]


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
