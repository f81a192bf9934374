"""`evals/<name>.json` of the runs: which model, which exam, which figures.

Evaluations side by side: each figure with its interval, on an axis that all models share.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from egpo.errors import InputError
from egpo.reports.run import ReportedRun
from egpo.runs.formatting import format_number


@dataclass(frozen=True)
class Interval:
    """A figure; `low` and `high` are None where no interval is known."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Exam:
    """Equal ones can be compared: `data` is a digest of the problems."""

    title: str
    data: str


@dataclass(frozen=True)
class Evaluation:
    """One file: which model, the exam that it sat, and its figures by name.

    `place` is that of the run whose checkpoint it was; None for a model that is no run's, as the base.
    """

    label: str
    place: int | None
    exam: Exam
    figures: Mapping[str, Interval]


def read_evaluations(runs: Sequence[ReportedRun]) -> list[Evaluation]:
    """Files without figures are passed over; what lies in several runs alike, as the base, is there once, and the
    models that are no run's come first."""
    found = [evaluation for run in runs for evaluation in _evaluations(run) if evaluation.figures]
    once = [evaluation for number, evaluation in enumerate(found) if evaluation not in found[:number]]
    return sorted(once, key=lambda evaluation: -1 if evaluation.place is None else evaluation.place)


def read_object(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be read ({error})", where=str(path), fix="evaluate again, or remove it") from error
    return value if isinstance(value, dict) else {}


def _evaluations(run: ReportedRun) -> Iterator[Evaluation]:
    for path in sorted(run.folder.evals.glob("*.json")):
        value = read_object(path)
        label = str(value.get("label") or path.stem)
        place = None if value.get("step") is None else run.place
        yield Evaluation(label, place, _exam(value), dict(_figures(value)))


def _exam(value: Mapping[str, Any]) -> Exam:
    """`countdown (test), 64 problems, 8 responses each at temperature 1`."""
    task, problems, sampling = value.get("task"), value.get("num_problems"), value.get("sampling")
    parts = [f"{task} ({value.get('split', 'test')})"] if task else []
    parts += [f"{problems} problems"] if problems else []
    if isinstance(sampling, dict):
        n, temperature = sampling.get("n", 1), sampling.get("temperature", 0)
        parts.append("greedy" if temperature == 0 else f"{n} responses each at temperature {temperature:g}")
    return Exam(", ".join(parts), str(value.get("data", "")))


def _figures(value: Mapping[str, Any]) -> Iterator[tuple[str, Interval]]:
    by_k = value.get("pass_at_k")
    estimates = {"Accuracy": value.get("accuracy"), "Mean score": value.get("mean_score")}
    estimates |= {f"pass@{k}": found for k, found in by_k.items() if str(k) != "1"} if isinstance(by_k, dict) else {}
    for name, estimate in estimates.items():
        if interval := _interval(estimate):
            yield name, interval


def _interval(estimate: Any) -> Interval | None:
    """None where there is no value; an end that is no number is not known."""
    found = estimate if isinstance(estimate, dict) else {}
    value, low, high = (_number(found.get(name)) for name in ("value", "low", "high"))
    return None if value is None else Interval(value, low, high)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True)
class FigureRow:
    """Texts, and places in percent of the axis. `place` is the run's, which decides the colour."""

    label: str
    place: int | None
    value: str
    at: float
    interval: str = ""
    low_at: float | None = None
    high_at: float | None = None


@dataclass(frozen=True)
class FigureTable:
    """One figure of all evaluations, on an axis between two labels."""

    name: str
    low_label: str
    high_label: str
    rows: Sequence[FigureRow]


@dataclass(frozen=True)
class EvaluationTable:
    """The evaluations of one exam: only these can be compared."""

    title: str
    figures: Sequence[FigureTable]


def evaluation_tables(evaluations: Sequence[Evaluation]) -> list[EvaluationTable]:
    """One for each exam."""
    exams = dict.fromkeys(evaluation.exam for evaluation in evaluations)
    return [_table(exam, [evaluation for evaluation in evaluations if evaluation.exam == exam]) for exam in exams]


def _table(exam: Exam, evaluations: Sequence[Evaluation]) -> EvaluationTable:
    names = dict.fromkeys(name for evaluation in evaluations for name in evaluation.figures)
    return EvaluationTable(exam.title, [_figure_table(name, evaluations) for name in names])


def _figure_table(name: str, evaluations: Sequence[Evaluation]) -> FigureTable:
    shown = [(evaluation, evaluation.figures[name]) for evaluation in evaluations if name in evaluation.figures]
    ends = [end for _, i in shown for end in (i.value, i.low, i.high) if end is not None]
    low, high = _axis(ends)
    percent = name != "Mean score"
    rows = [_row(evaluation, interval, low, high, percent) for evaluation, interval in shown]
    return FigureTable(name, _text(low, percent), _text(high, percent), rows)


def _axis(ends: Sequence[float]) -> tuple[float, float]:
    """Round numbers about all of them, so that intervals are as wide as they can be: labels say where it begins."""
    step = 10.0 ** math.floor(math.log10(max(max(ends) - min(ends), 0.1)))
    low, high = math.floor(min(ends) / step), math.ceil(max(ends) / step)
    if low == high:
        low, high = (low - 1, high) if low > 0 else (low, high + 1)
    return low * step, high * step


def _row(evaluation: Evaluation, interval: Interval, low: float, high: float, percent: bool) -> FigureRow:
    def at(value: float) -> float:
        return round(100 * (value - low) / (high - low), 2)

    row = FigureRow(evaluation.label, evaluation.place, _text(interval.value, percent), at(interval.value))
    if interval.low is None or interval.high is None:
        return row
    text = f"{_text(interval.low, percent)} to {_text(interval.high, percent)}"
    return replace(row, interval=text, low_at=at(interval.low), high_at=at(interval.high))


def _text(value: float, percent: bool) -> str:
    return f"{100 * value:.1f} %" if percent else format_number(value)
