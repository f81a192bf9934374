"""The figures of a run as curves: steps and values, thinned where there are more than an eye can tell apart.

One run as the report reads it: whatever is there so far.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from egpo.errors import InputError
from egpo.runs.folder import RunFolder
from egpo.runs.health import Note, read_notes
from egpo.runs.metric_table import INFORMATIVE, NO_SIGNAL
from egpo.runs.metrics import read_metrics
from egpo.runs.provenance import Provenance, read_provenance

_DIGITS = 5  # significant ones: finer than any screen


@dataclass(frozen=True)
class Curve:
    """A value at each of some steps, in their order."""

    steps: Sequence[int]
    values: Sequence[float]


def curves_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, Curve]:
    """By the metric's name. A line that has no step, and a value that is no number, are passed over."""
    found: dict[str, dict[int, float]] = {}
    for line in lines:
        if (step := step_of(line)) is not None:
            for name, value in _figures(line).items():
                found.setdefault(name, {})[step] = value
    return {name: Curve([*points], [*points.values()]) for name, points in found.items()}


def step_of(line: Mapping[str, Any]) -> int | None:
    step = line.get("step")
    return step if isinstance(step, int) else None


def _figures(line: Mapping[str, Any]) -> dict[str, float]:
    figures = {name: value for name, value in line.items() if name != "step" and isinstance(value, int | float)}
    if NO_SIGNAL in figures:
        figures[INFORMATIVE] = 1 - figures[NO_SIGNAL]
    return figures


def thinned(curve: Curve, most: int) -> Curve:
    """At most so many points: each the mean of equally many neighbours, at the last of their steps."""
    count = len(curve.steps)
    if count <= most:
        return curve
    cuts = [round(part * count / most) for part in range(most + 1)]
    steps = [curve.steps[end - 1] for end in cuts[1:]]
    return Curve(steps, [fmean(curve.values[start:end]) for start, end in pairwise(cuts)])


def rounded(value: float) -> float:
    """To five significant digits; whole numbers as such."""
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


@dataclass(frozen=True)
class ReportedRun:
    """`name` tells it from the other runs of the page; `place` is its number there, which decides its colour.

    What a run has not written yet is empty, or None.
    """

    name: str
    place: int
    folder: RunFolder
    config_yaml: str
    config: Mapping[str, Any]
    curves: Mapping[str, Curve]
    last_step: int
    notes: Sequence[Note]
    provenance: Provenance | None

    @property
    def planned_steps(self) -> int | None:
        """As many as the config asks for; a supervised run may count epochs instead."""
        steps = self.config.get("steps")
        return steps if isinstance(steps, int) else None


def read_runs(paths: Sequence[Path]) -> list[ReportedRun]:
    """In the order given, each once. A folder that is no run is an InputError."""
    folders = list({path.resolve(): RunFolder(path) for path in paths}.values())
    if not folders:
        raise InputError("no run given", where="egpo report", fix="name one or more run folders: egpo report runs/a")
    for folder in folders:
        _require_run(folder)
    names = _distinct_names([folder.path.resolve() for folder in folders])
    return [_read_run(folder, names[place], place) for place, folder in enumerate(folders)]


def _read_run(folder: RunFolder, name: str, place: int) -> ReportedRun:
    text = folder.config.read_text(encoding="utf-8", errors="replace") if folder.config.is_file() else ""
    metrics, timings = (read_metrics(path) if path.is_file() else [] for path in (folder.metrics, folder.timings))
    return ReportedRun(
        name=name,
        place=place,
        folder=folder,
        config_yaml=text,
        config=_config(text, folder),
        curves=curves_of([*metrics, *timings]),
        last_step=max((step_of(line) or 0 for line in metrics), default=0),
        notes=read_notes(folder.health),
        provenance=read_provenance(folder.provenance) if folder.provenance.is_file() else None,
    )


def _require_run(folder: RunFolder) -> None:
    if folder.config.is_file() or folder.metrics.is_file():
        return
    if not folder.path.is_dir():
        raise InputError("no such folder", where=str(folder.path), fix="give the folder of a run, as runs/<name>")
    inner = sorted(path.name for path in folder.path.iterdir() if (path / folder.config.name).is_file())
    fix = "give a folder that `egpo train` wrote, with config.yaml and metrics.jsonl in it"
    if inner:
        fix = f"it holds runs, which can be given one by one: {' '.join(str(folder.path / name) for name in inner[:4])}"
    raise InputError("is no run", where=str(folder.path), fix=fix)


def _config(text: str, folder: RunFolder) -> Mapping[str, Any]:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError("not YAML", where=str(folder.config), fix="restore it") from error
    return value if isinstance(value, dict) else {}


def _distinct_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of each path, as few as tell all of them apart."""
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]
