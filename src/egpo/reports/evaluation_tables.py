"""Evaluations side by side: each figure with its interval, on an axis that all models share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from egpo.reports.evaluations import Evaluation, Exam, Interval
from egpo.runs.readings import figure


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
    return f"{100 * value:.1f} %" if percent else figure(value)
