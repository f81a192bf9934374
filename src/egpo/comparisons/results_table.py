"""The ledger: every run of a folder, what it was, how it was evaluated, and how it stands. Rebuilt from the folders.

A run has a line for each exam that it sat; a run without one, and a folder that cannot be read, have theirs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from egpo.comparisons.entrants import Sitting, latest, read_sittings
from egpo.errors import EgpoError, InputError
from egpo.evals.responses import SampleRecord
from egpo.files import ROWS
from egpo.runs.folder import RunFolder
from egpo.runs.metrics import read_metrics
from egpo.runs.provenance import Provenance, read_provenance


@dataclass(frozen=True)
class Entry:
    """`mean` is the accuracy in percent, over the evaluations of one exam, `evaluations` each of them. What is not
    known is empty."""

    name: str
    method: str = ""
    base: str = ""
    data: str = ""
    seed: str = ""
    evaluation: str = ""
    mean: str = ""
    evaluations: str = ""
    status: str = ""
    date: str = ""

    @property
    def cells(self) -> Sequence[str]:
        """In the order of `COLUMNS`."""
        return astuple(self)


COLUMNS = tuple(field.name for field in fields(Entry))


def read_ledger(runs: Path) -> list[Entry]:
    """In the order of names. InputError where there is no such folder, or nothing in it."""
    if not runs.is_dir():
        raise InputError("no such folder", where=str(runs), fix="give the folder that holds the runs")
    if _is_run(runs):
        raise InputError(
            "is a run itself", where=str(runs), fix=f"give the folder that holds it: {runs.absolute().parent}"
        )
    folders = _run_folders(runs)
    if not folders:
        raise InputError("holds no runs", where=str(runs), fix="train one: egpo train RECIPE")
    return [entry for folder in folders for entry in _entries(folder, str(folder.relative_to(runs)))]


def _run_folders(runs: Path) -> list[Path]:
    """Every folder in it; one that only holds runs stands for those. What links lead to a second time is listed once,
    by its own name."""
    folders = [path for path in runs.iterdir() if path.is_dir() and not path.name.startswith(".")]
    places = [place for folder in sorted(folders) for place in _inner_runs(folder) or [folder]]
    known: dict[Path, Path] = {}
    for place in sorted(places, key=lambda place: place.resolve() != place.absolute()):
        known.setdefault(place.resolve(), place)
    return sorted(known.values())


def _inner_runs(folder: Path) -> list[Path]:
    """None of a folder that is a run itself, or that nobody may look into: the latter says so in its own line."""
    try:
        return [] if _is_run(folder) else sorted(path for path in folder.iterdir() if path.is_dir() and _is_run(path))
    except OSError:
        return []


def _is_run(folder: Path) -> bool:
    return RunFolder(folder).config.is_file()


def _entries(folder: Path, name: str) -> list[Entry]:
    """A folder that cannot be read is an entry of its own: a ledger leaves nothing out."""
    try:
        return _of_run(RunFolder(folder), name)
    except EgpoError as error:
        return [Entry(name, status=f"unreadable: {error}")]
    except Exception as error:  # the boundary: anybody may have written in a run's files
        return [Entry(name, status=f"unreadable: {type(error).__name__}: {error}")]


def _of_run(run: RunFolder, name: str) -> list[Entry]:
    if not run.config.is_file():
        # `egpo probe RECIPE` writes to the folder of a run that may come later.
        probed = (run.evals / "probe.json").is_file()
        return [Entry(name, status="probed, not trained" if probed else "no run: no config.yaml")]
    config = _config(run)
    provenance = read_provenance(run.provenance) if run.provenance.is_file() else None
    known = _known(config, provenance)
    sittings, status = read_sittings(run.evals), _status(run, config)
    if not sittings:
        return [Entry(name, status=f"{status}, not evaluated", **known)]
    exams = dict.fromkeys(sitting.exam for sitting in sittings)
    return [
        Entry(name, status=status, evaluation=exam, **_figures([s for s in sittings if s.exam == exam]), **known)
        for exam in exams
    ]


def _config(run: RunFolder) -> Mapping[str, Any]:
    try:
        value = yaml.safe_load(run.config.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise InputError("config.yaml is no YAML") from error
    if not isinstance(value, dict):
        raise InputError("config.yaml has no settings")
    return value


def _known(config: Mapping[str, Any], provenance: Provenance | None) -> dict[str, str]:
    supervised = "task" not in config
    data = _named(config, "data", "path") if supervised else _named(config, "task", "name")
    digest = provenance.data.get("train", "").removeprefix(ROWS) if provenance else ""
    return {
        "method": "sft" if supervised else _named(config, "algorithm", "estimator"),
        "base": _named(config, "model", "path"),
        "data": f"{data} {digest[:8]}".strip(),
        "seed": str(config.get("seed", "")),
        "date": provenance.start.time[:10] if provenance else "",
    }


def _figures(sittings: Sequence[Sitting]) -> dict[str, str]:
    """Of the latest checkpoint; where it was evaluated once, each pass over the problems is an evaluation."""
    chosen = latest(sittings)
    parts = chosen[0].passes if len(chosen) == 1 else [sitting.samples for sitting in chosen]
    values = [100 * fmean(sample.acc for sample in judged) for part in parts if (judged := _judged(part))]
    if not values:
        return {}
    return {"mean": f"{fmean(values):.1f}", "evaluations": " ".join(f"{value:.1f}" for value in values)}


def _judged(samples: Sequence[SampleRecord]) -> list[SampleRecord]:
    return [sample for sample in samples if not sample.failed]


def _status(run: RunFolder, config: Mapping[str, Any]) -> str:
    lines = read_metrics(run.metrics) if run.metrics.is_file() else []
    done, planned = max((line.get("step") or 0 for line in lines), default=0), config.get("steps")
    if isinstance(planned, int):
        return "finished" if done >= planned else f"step {done} of {planned}"
    return f"step {done}"


def _named(config: Mapping[str, Any], section: str, key: str) -> str:
    inner = config.get(section)
    return str(inner.get(key, "")) if isinstance(inner, dict) else ""
