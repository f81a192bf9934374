"""One run as the report reads it: whatever is there so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from egpo.errors import InputError
from egpo.reports.curves import Curve, curves_of, step_of
from egpo.runs.folder import RunFolder
from egpo.runs.health import Note, read_notes
from egpo.runs.metrics import read_metrics
from egpo.runs.provenance import Provenance, read_provenance


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
