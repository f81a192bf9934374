"""The verdicts of `egpo compare --out`, read from `compare.json`, with the figures behind them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpo.errors import InputError
from egpo.reports.curves import ReportedRun
from egpo.runs.stored import read_json_object

PATTERN = "compare*.json"
_FORMAT = 1


@dataclass(frozen=True)
class ContrastRow:
    """One row of the table: two conditions and their difference, as text."""

    sides: str
    metric: str
    difference: str
    interval: str
    p_value: str
    detectable: str


@dataclass(frozen=True)
class ComparisonSection:
    """One comparison. `unfair` lists what differed between the runs besides the factor that was compared."""

    title: str
    verdicts: Sequence[str]
    rows: Sequence[ContrastRow]
    unfair: Sequence[str]
    notes: Sequence[str]


def read_comparisons(files: Sequence[Path], runs: Sequence[ReportedRun]) -> list[ComparisonSection]:
    """Return the given comparisons, and those beside the runs if they are about runs of this page only."""
    parents = {run.stored.folder.path.resolve().parent for run in runs}
    beside = {path for parent in parents for path in parent.glob(PATTERN)} - {file.resolve() for file in files}
    given = [_section(_read(path), path) for path in files]
    names = {run.stored.folder.path.resolve().name for run in runs}
    return given + [_section(value, path) for path in sorted(beside) if _runs_of(value := _read(path)) <= names]


def _read(path: Path) -> Mapping[str, Any]:
    value = read_json_object(path)
    if value.get("format") != _FORMAT:
        fix = "write it again with `egpo compare --out`"
        raise InputError(f"format {value.get('format')}; this version reads format {_FORMAT}", where=str(path), fix=fix)
    return value


def _runs_of(value: Mapping[str, Any]) -> set[str]:
    conditions = value.get("conditions", [])
    return {str(run.get("run")).rpartition("/")[2] for condition in conditions for run in condition.get("runs", [])}


def _section(value: Mapping[str, Any], path: Path) -> ComparisonSection:
    try:
        return ComparisonSection(
            title=str(value["title"]),
            verdicts=[str(contrast["verdict"]) for contrast in value["contrasts"]],
            rows=[_row(contrast) for contrast in value["contrasts"]],
            unfair=[_inequality(found) for found in value["unfair"]],
            notes=[str(note) for note in value["notes"]],
        )
    except (KeyError, TypeError, AttributeError) as error:
        fix = "write it again with `egpo compare --out`"
        raise InputError(f"not a comparison ({error!r:.60})", where=str(path), fix=fix) from error


def _row(contrast: Mapping[str, Any]) -> ContrastRow:
    share = bool(contrast["is_share"])
    low, high, p_value = contrast["low"], contrast["high"], contrast["adjusted_p"]
    return ContrastRow(
        sides=f"{contrast['other']} - {contrast['base']}",
        metric=str(contrast["metric"]),
        difference=_signed(contrast["delta"], share),
        interval="–" if low is None or high is None else f"{_signed(low, share)} to {_signed(high, share)}",
        p_value="< 0.001" if p_value < 0.001 else f"{p_value:.2g}",
        detectable=_signed(contrast["detectable"], share).removeprefix("+") if contrast["detectable"] else "–",
    )


def _signed(value: float, share: bool) -> str:
    return f"{100 * value:+.1f}" if share else f"{value:+.3f}"


def _inequality(found: Mapping[str, Any]) -> str:
    values = ", ".join(f"{run}: {value}" for run, value in found["values"].items())
    return f"{found['kind']} {found['key']} ({values})"
