"""The evaluations of the runs, grouped by exam: each figure with its interval, on an axis that all models share.

An exam is a task, its problems and how responses were sampled. Only figures of one exam can be compared.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from egpo.reports.curves import ReportedRun
from egpo.runs.formatting import format_number
from egpo.runs.stored import EvaluationFile

ACCURACY = "Accuracy"


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval; `low` and `high` are None if no interval is known."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class ExamKey:
    """What identifies an exam: its description, and `data`, a digest of the problems."""

    title: str
    data: str


@dataclass(frozen=True)
class ShownEvaluation:
    """One evaluation file: the model's label, the exam, and the figures by name.

    `place` is the position of the run whose checkpoint was evaluated; None for other models, such as the base. Copies
    of one evaluation in several run folders are equal: `file` is not compared.
    """

    label: str
    place: int | None
    exam: ExamKey
    figures: Mapping[str, Interval]
    file: EvaluationFile = field(compare=False)

    @property
    def step(self) -> int | None:
        return self.file.step

    @property
    def responses(self) -> Path:
        """The file with the judged responses; it may be missing."""
        return self.file.path.with_suffix(".jsonl")

    @property
    def sampling(self) -> dict[str, Any]:
        """All settings of the sampling but its seed."""
        return {name: value for name, value in self.file.section("sampling").items() if name != "seed"}

    @property
    def model(self) -> str:
        """The path or name of the model, as it was given to `egpo eval`."""
        return str(self.file.header.get("model", ""))

    @property
    def accuracy_text(self) -> str:
        """The accuracy with its interval, such as `40.6 % [33.1, 48.0]`; a dash if it is missing."""
        found = self.figures.get(ACCURACY)
        if found is None:
            return "–"
        text = f"{100 * found.value:.1f} %"
        if found.low is None or found.high is None:
            return text
        return f"{text} [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def read_evaluations(runs: Sequence[ReportedRun]) -> list[ShownEvaluation]:
    """Return the evaluations that have figures: models that are not checkpoints first, then by run.

    An evaluation that lies in several run folders, such as the base's, is returned once.
    """
    found = [evaluation for run in runs for evaluation in _evaluations(run) if evaluation.figures]
    once = [evaluation for number, evaluation in enumerate(found) if evaluation not in found[:number]]
    return sorted(once, key=lambda evaluation: -1 if evaluation.place is None else evaluation.place)


def _evaluations(run: ReportedRun) -> Iterator[ShownEvaluation]:
    for file in run.stored.evaluations:
        place = None if file.header.get("step") is None else run.place
        yield ShownEvaluation(file.label, place, _exam(file), dict(_figures(file.header)), file)


def _exam(file: EvaluationFile) -> ExamKey:
    """Describe an exam: `countdown (test), 64 problems, 8 responses each at temperature 1`."""
    value, sampling = file.header, file.section("sampling")
    task, problems = value.get("task"), value.get("num_problems")
    parts = [f"{task} ({value.get('split', 'test')})"] if task else []
    parts += [f"{problems} problems"] if problems else []
    if isinstance(value.get("sampling"), dict):
        n, temperature = sampling.get("n", 1), sampling.get("temperature", 0)
        parts.append("greedy" if temperature == 0 else f"{n} responses each at temperature {temperature:g}")
    return ExamKey(", ".join(parts), str(value.get("data", "")))


def _figures(value: Mapping[str, Any]) -> Iterator[tuple[str, Interval]]:
    by_k = value.get("pass_at_k")
    estimates = {ACCURACY: value.get("accuracy"), "Mean score": value.get("mean_score")}
    estimates |= {f"pass@{k}": found for k, found in by_k.items() if str(k) != "1"} if isinstance(by_k, dict) else {}
    for name, estimate in estimates.items():
        if interval := _interval(estimate):
            yield name, interval


def _interval(estimate: Any) -> Interval | None:
    """Read an estimate; None if it has no value. An end that is not a number becomes None."""
    found = estimate if isinstance(estimate, dict) else {}
    value, low, high = (_number(found.get(name)) for name in ("value", "low", "high"))
    return None if value is None else Interval(value, low, high)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True)
class FigureRow:
    """One model's figure: texts, and positions (`at`) in percent of the axis. `place` decides the colour."""

    label: str
    place: int | None
    value: str
    at: float
    interval: str = ""
    low_at: float | None = None
    high_at: float | None = None


@dataclass(frozen=True)
class FigureTable:
    """One figure of all evaluations of an exam, on an axis between two labels."""

    name: str
    low_label: str
    high_label: str
    rows: Sequence[FigureRow]


@dataclass(frozen=True)
class EvaluationTable:
    """All figures of one exam."""

    title: str
    figures: Sequence[FigureTable]


def evaluation_tables(evaluations: Sequence[ShownEvaluation]) -> list[EvaluationTable]:
    """Return one table for each exam."""
    exams = dict.fromkeys(evaluation.exam for evaluation in evaluations)
    return [_table(exam, [evaluation for evaluation in evaluations if evaluation.exam == exam]) for exam in exams]


def _table(exam: ExamKey, evaluations: Sequence[ShownEvaluation]) -> EvaluationTable:
    names = dict.fromkeys(name for evaluation in evaluations for name in evaluation.figures)
    return EvaluationTable(exam.title, [_figure_table(name, evaluations) for name in names])


def _figure_table(name: str, evaluations: Sequence[ShownEvaluation]) -> FigureTable:
    shown = [(evaluation, evaluation.figures[name]) for evaluation in evaluations if name in evaluation.figures]
    ends = [end for _, i in shown for end in (i.value, i.low, i.high) if end is not None]
    low, high = _axis(ends)
    percent = name != "Mean score"
    rows = [_row(evaluation, interval, low, high, percent) for evaluation, interval in shown]
    return FigureTable(name, _text(low, percent), _text(high, percent), rows)


def _axis(ends: Sequence[float]) -> tuple[float, float]:
    """Return round numbers just outside all values. The axis need not begin at 0: its labels show where it does."""
    step = 10.0 ** math.floor(math.log10(max(max(ends) - min(ends), 0.1)))
    low, high = math.floor(min(ends) / step), math.ceil(max(ends) / step)
    if low == high:
        low, high = (low - 1, high) if low > 0 else (low, high + 1)
    return low * step, high * step


def _row(evaluation: ShownEvaluation, interval: Interval, low: float, high: float, percent: bool) -> FigureRow:
    def at(value: float) -> float:
        return round(100 * (value - low) / (high - low), 2)

    row = FigureRow(evaluation.label, evaluation.place, _text(interval.value, percent), at(interval.value))
    if interval.low is None or interval.high is None:
        return row
    text = f"{_text(interval.low, percent)} to {_text(interval.high, percent)}"
    return replace(row, interval=text, low_at=at(interval.low), high_at=at(interval.high))


def _text(value: float, percent: bool) -> str:
    return f"{100 * value:.1f} %" if percent else format_number(value)
