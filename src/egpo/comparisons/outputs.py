"""The output of a comparison as JSON, Markdown or CSV. Each format lists what makes the comparison unfair."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from egpo.comparisons.fairness import together
from egpo.comparisons.outcome import POWER
from egpo.comparisons.result import (
    NOT_DISTINGUISHABLE,
    Comparison,
    ConditionRow,
    Contrast,
    RunRow,
    amount,
    p_text,
    signed,
)
from egpo.errors import EgpoError
from egpo.files import write_atomically
from egpo.fingerprints import sealed

FORMAT = 1
_FORMULAS = tuple("=+-@\t\r")
_MARKUP = str.maketrans({letter: f"\\{letter}" for letter in "\\|`*[]"} | {"<": "&lt;"})
CONDITION_COLUMNS = ("condition", "metric", "mean", "runs", "evaluations")
CONTRAST_COLUMNS = ("contrast", "metric", "delta", "95 % interval", "p", "MDE", "finding")
"""Columns of the table of contrasts. `p` has Holm's correction for multiple tests. `MDE` (minimum detectable effect) is
the smallest detectable difference; the full name does not fit into a terminal of 80 columns."""


_MOST_SENTENCES = 3


def as_json(comparison: Comparison) -> str:
    """Return the comparison as JSON. Shares such as the accuracy are between 0 and 1."""
    return (
        json.dumps(sealed({"format": FORMAT, **asdict(comparison)}), indent=2, ensure_ascii=False, allow_nan=False)
        + "\n"
    )


def as_markdown(comparison: Comparison) -> str:
    lines = [f"### {markdown_cell(comparison.title)}", ""]
    lines += [f"- {markdown_cell(line)}" for line in verdict_lines(comparison.contrasts)]
    lines += ["", *markdown_table(CONDITION_COLUMNS, map(condition_cells, comparison.conditions))]
    lines += ["", *markdown_table(CONTRAST_COLUMNS, map(contrast_cells, comparison.contrasts))]
    if comparison.unfair:
        lines += [
            "",
            "**Not a fair comparison:**",
            "",
            *(f"- {markdown_cell(str(found))}" for found in comparison.unfair),
        ]
    if comparison.notes:
        lines += ["", *(f"- {markdown_cell(note)}" for note in comparison.notes)]
    return "\n".join(lines) + "\n"


def as_csv(comparison: Comparison) -> str:
    """Return the comparison as CSV: one line per pair of conditions, with unrounded numbers.

    The column `fair` is false if settings besides the factor differ.
    """
    rows = [asdict(found) | {"fair": str(not comparison.unfair).lower()} for found in comparison.contrasts]
    columns = [name for name in rows[0] if name not in ("is_share", "verdict")] + ["verdict"]
    return csv_text(columns, [[row[name] for name in columns] for row in rows])


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as CSV. Text that a spreadsheet would read as a formula gets a quote before it."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns)
    for row in rows:
        lines.writerow([f"'{cell}" if isinstance(cell, str) and cell[:1] in _FORMULAS else cell for cell in row])
    return text.getvalue()


def write_json(comparison: Comparison, folder: Path, name: str = "compare") -> Path:
    """Write a comparison to `compare.json` in a folder. A report of runs shows every `compare*.json` beside them."""
    return write_text(folder / f"{name}.json", as_json(comparison))


def write_text(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        fix = "free some disk space or fix the permissions, or choose another folder"
        raise EgpoError(f"the file cannot be written ({error.strerror or error})", where=str(path), fix=fix) from error
    return path


def verdict_lines(contrasts: Sequence[Contrast]) -> list[str]:
    """Return the verdicts in words: a sentence for each difference that was found, and one for all others together.

    A single contrast has its own sentence. More than three differences are counted: the table has them. The tests are
    named once, in the last line.
    """
    found = [one.verdict for one in contrasts if one.finding != NOT_DISTINGUISHABLE or len(contrasts) == 1]
    others = [one for one in contrasts if one.finding == NOT_DISTINGUISHABLE] if len(contrasts) > 1 else []
    if len(found) > _MOST_SENTENCES:
        found = [f"{len(found)} of {len(contrasts)} contrasts are different from zero"]
    if others:
        found.append(_together(others, len(contrasts)))
    methods = " and ".join(dict.fromkeys(one.method for one in contrasts))
    correction = f"; p-values with Holm's correction for {len(contrasts)} contrasts" if len(contrasts) > 1 else ""
    return [*found, f"Test: {methods}{correction}."]


def _together(contrasts: Sequence[Contrast], num_all: int) -> str:
    """Return one sentence on the contrasts without a finding, with the range of their smallest detectable differences.

    Metrics that are shares and others have different units: the range is of the shares, if there are any.
    """
    is_share = any(one.is_share for one in contrasts)
    known = sorted(one.detectable for one in contrasts if one.detectable is not None and one.is_share == is_share)
    reach = "unknown"
    if known:
        low, high = (amount(value, is_share) for value in (known[0], known[-1]))
        reach = low if low == high else f"{low.removesuffix(' points')} to {high}"
    return (
        f"{len(contrasts)} of {num_all} contrasts are not distinguishable from zero; smallest detectable difference: "
        f"{reach} ({100 * POWER:.0f} % power)"
    )


def condition_cells(row: ConditionRow) -> Sequence[str]:
    """Return the cells of a condition's row, with the mean of each run. Repeated evaluations of a single run are
    listed, of several runs their number and the largest standard deviation are given; JSON has all of them."""
    names, mean = ", ".join(together([run.run for run in row.runs])), figure(row.mean, row.is_share)
    if len(row.runs) == 1:
        (run,) = row.runs
        return row.label, row.metric, mean, "1", _evaluations(run, row.is_share) if run.num_evaluations > 1 else "1"
    return row.label, row.metric, mean, f"{names}: {run_means(row)}", repeated(row)


def run_means(row: ConditionRow) -> str:
    """Return the mean of each run in the order of the runs: `68.8, 60.2 %`."""
    means = ", ".join(figure(run.mean, row.is_share).removesuffix(" %") for run in row.runs)
    return f"{means} %" if row.is_share else means


def repeated(row: ConditionRow) -> str:
    """Return how many evaluations each run has, and the largest standard deviation between those of one run."""
    counts = " or ".join(map(str, sorted({run.num_evaluations for run in row.runs})))
    spreads = [run.evaluation_sd for run in row.runs if run.evaluation_sd is not None]
    return f"{counts} (sd {amount(max(spreads), row.is_share)} or less)" if spreads else counts


def contrast_cells(row: Contrast) -> Sequence[str]:
    share = row.is_share
    interval = "" if row.low is None or row.high is None else f"{signed(row.low, share)} to {signed(row.high, share)}"
    detectable = "unknown" if row.detectable is None else signed(row.detectable, share).removeprefix("+")
    difference, p_value = signed(row.delta, share), p_text(row.adjusted_p).removeprefix("= ")
    return f"{row.other} - {row.base}", row.metric, difference, interval, p_value, detectable, row.finding


def _evaluations(run: RunRow, is_share: bool) -> str:
    figures = ", ".join(figure(one, is_share).removesuffix(" %") for one in run.evaluations) or str(run.num_evaluations)
    return figures if run.evaluation_sd is None else f"{figures} (sd {amount(run.evaluation_sd, is_share)})"


def figure(value: float, is_share: bool) -> str:
    """Format a mean: `68.8 %` for a share, `0.688` for a score."""
    return f"{100 * value:.1f} %" if is_share else f"{value:.3f}"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(map(markdown_cell, row))} |" for row in rows]
    return [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns), *lines]


def markdown_cell(text: str) -> str:
    """Return text on one line with Markdown escaped, because labels may contain any characters."""
    return " ".join(text.translate(_MARKUP).split())
