"""`compare.json`, as `egpo compare --out` writes it: the verdicts, and what they rest on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpo.errors import InputError
from egpo.reports.evaluations import read_object
from egpo.reports.run import ReportedRun

PATTERN = "compare*.json"
_FORMAT = 1


@dataclass(frozen=True)
class ContrastRow:
    """Two conditions, as text."""

    sides: str
    metric: str
    difference: str
    interval: str
    p_value: str
    detectable: str


@dataclass(frozen=True)
class ComparisonSection:
    """`unfair` is what differed besides what was compared."""

    title: str
    verdicts: Sequence[str]
    rows: Sequence[ContrastRow]
    unfair: Sequence[str]
    notes: Sequence[str]


def read_comparisons(files: Sequence[Path], runs: Sequence[ReportedRun]) -> list[ComparisonSection]:
    """Those that were asked for, and those that lie beside the runs, if they are about runs of this page alone."""
    parents = {run.folder.path.resolve().parent for run in runs}
    beside = {path for parent in parents for path in parent.glob(PATTERN)} - {file.resolve() for file in files}
    asked = [_section(_read(path), path) for path in files]
    names = {run.folder.path.resolve().name for run in runs}
    return asked + [_section(value, path) for path, value in _found(sorted(beside)) if _runs_of(value) <= names]


def _found(paths: Sequence[Path]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    yield from ((path, _read(path)) for path in paths)


def _read(path: Path) -> Mapping[str, Any]:
    value = read_object(path)
    if value.get("format") != _FORMAT:
        fix = "write it again with `egpo compare --out`"
        raise InputError(f"format {value.get('format')}, and this version reads {_FORMAT}", where=str(path), fix=fix)
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
        raise InputError(f"is no comparison ({error!r:.60})", where=str(path), fix=fix) from error


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
    told = ", ".join(f"{run}: {value}" for run, value in found["values"].items())
    return f"{found['kind']} {found['key']} ({told})"
