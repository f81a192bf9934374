"""The files `metrics.jsonl` and `timings.jsonl` (one JSON object per step), and the history that health rules read.

A line has `step` first and then the metrics sorted by name. Numbers are written with all digits, so that reading them
gives the same values.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from egpo.errors import InputError
from egpo.runs.json_lines import Line, LineStream, read_lines


class MetricStream:
    """A file to which the metrics of each step are appended.

    Floats are written with Python's `repr`, so that reading them gives the same float. NaN and infinities are left out,
    because JSON cannot represent them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = LineStream(path)

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        if "step" in metrics:
            raise ValueError("`step` is reserved: no metric may have this name")
        self._lines.append({"step": step} | finite_figures(metrics))

    def sync(self) -> None:
        """Flush the lines to disk. Call this before the checkpoint of the step is published."""
        self._lines.sync()

    def forget_after(self, step: int, *, gaps: bool = False) -> None:
        """Remove the lines of steps after `step`, and an incomplete last line. `gaps`: see `size_after`."""
        self._lines.cut(self.size_after(step, gaps=gaps))

    def size_after(self, step: int, *, gaps: bool = False) -> int:
        """Return the size in bytes of the lines of steps up to `step`.

        Steps count from 1; a line for step 0 may come before them. If a step is missing, raise InputError, because the
        curve of a resumed run would have a gap; with `gaps`, missing steps are allowed.
        """
        lines = read_lines(self.path) if self.path.exists() else ()
        kept = [(number, line.end) for line in lines if (number := self._step_of(line)) <= step]
        if not gaps:
            self._require_steps([number for number, _ in kept], step)
        return kept[-1][1] if kept else 0

    def _step_of(self, line: Line) -> int:
        step = line.value.get("step")
        if isinstance(step, int):
            return step
        fix = "the file is damaged: fix or remove the line"
        raise InputError("the line has no `step`", where=f"{self.path}, line {line.number}", fix=fix)

    def _require_steps(self, found: list[int], step: int) -> None:
        if [number for number in found if number] == list(range(1, step + 1)) and 0 not in found[1:]:
            return
        lost = sorted(set(range(1, step + 1)) - set(found))
        what = f"there is no line for step {lost[0]}" if lost else "the steps are not consecutive"
        raise InputError(
            f"{what}, so the run cannot be resumed from step {step}",
            where=str(self.path),
            fix="restore the file, or start another run (name=...) with the checkpoint as its model.path",
        )


def finite_figures(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the finite metrics as plain numbers, sorted by name. Integers stay integers."""
    return {name: _plain(value) for name, value in sorted(metrics.items()) if math.isfinite(value)}


def _plain(value: float) -> float:
    return int(value) if isinstance(value, int) else float(value)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return every complete line of a file. A last line that is still being written is left out.

    Raise InputError if a line is invalid.
    """
    return [line.value for line in read_lines(path)]


_BOUND = 1e100
"""The largest absolute value in the history. Larger values are replaced by it, so that squares and sums in the health
rules do not overflow."""


LONGEST = 50
"""The largest number of steps that a health rule looks back. Older values are forgotten: with all of them, a run would
take 2 MB more memory after every 1,000 steps."""


class History:
    """The last finite values of each metric, and all metrics of the current step.

    A value that is not finite is visible at its own step only. `metrics.jsonl` does not contain it, and in a resumed
    run the health rules must see the same history as in an uninterrupted run. `ends_at` says in words what ends a
    response; empty if that is not known.
    """

    def __init__(self, ends_at: str = "") -> None:
        self.step, self.ends_at = -1, ends_at
        self.now: Mapping[str, float] = {}
        self._values: dict[str, deque[float]] = {}

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        if step <= self.step:
            raise ValueError(f"step {step} was added after step {self.step}, but steps must increase")
        self.step, self.now = step, metrics
        for name, value in finite_figures(metrics).items():
            self._values.setdefault(name, deque(maxlen=LONGEST)).append(max(-_BOUND, min(_BOUND, float(value))))

    def present(self, name: str) -> float | None:
        """Return the value of a metric at the current step; None if it is missing or not finite."""
        value = self.now.get(name)
        return None if value is None or not math.isfinite(value) else float(value)

    def last(self, name: str, count: int) -> list[float]:
        """Return up to `count` last values of a metric; an empty list if the current step has no finite value."""
        if count > LONGEST:
            raise ValueError(f"only the last {LONGEST} values of a metric are kept, not {count}")
        return [] if self.present(name) is None else list(self._values[name])[-count:]

    def mean_of_last(self, name: str, count: int) -> float | None:
        """Return the mean of the last `count` values of a metric; None if there are fewer."""
        values = self.last(name, count)
        return fmean(values) if len(values) == count else None


@dataclass(frozen=True)
class Trend:
    """The change of a series from its first point to its last along the least-squares line, with a 95 % interval."""

    change: float
    low: float
    high: float


def trend(values: list[float]) -> Trend:
    """Return the trend of at least three values.

    The interval is change ± 2 standard errors, computed from the residuals under the assumption of independent points.
    Values that lie exactly on a line have an interval of width 0.
    """
    count = len(values)
    centre, mean = (count - 1) / 2, fmean(values)
    spread = sum((x - centre) ** 2 for x in range(count))
    slope = sum((x - centre) * (y - mean) for x, y in enumerate(values)) / spread
    residual = sum((y - mean - slope * (x - centre)) ** 2 for x, y in enumerate(values))
    error = math.sqrt(residual / (count - 2) / spread)
    length = count - 1
    return Trend(slope * length, (slope - 2 * error) * length, (slope + 2 * error) * length)
