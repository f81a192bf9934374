"""The evaluations of a run, by exam: which of them are the same exam sat again, and which one is compared.

Who enters a comparison: a run with its settings, where it comes from and how it was evaluated; or a plain model, of
which there are evaluations only.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from egpo.data.manifest import data_digest, file_digest
from egpo.errors import InputError
from egpo.evals.responses import SampleRecord, read_samples
from egpo.files import ROWS
from egpo.runs.folder import RunFolder
from egpo.runs.provenance import Provenance, read_provenance

_AGAIN = re.compile(r"[-_.](step|seed|run)[-_]?\d+$")
"""Endings of a file's name that do not make it another exam: `countdown-n8-t1-seed3-step40`."""


@dataclass(frozen=True)
class Sitting:
    """One evaluation file: `header` is the JSON with the figures; the responses lie beside it."""

    path: Path
    header: Mapping[str, Any]

    @property
    def exam(self) -> str:
        """The name of its file, without what tells sittings of one exam apart."""
        name, shorter = self.path.stem, ""
        while (shorter := _AGAIN.sub("", name)) != name:
            name = shorter
        return name

    @property
    def step(self) -> int | None:
        step = self.header.get("step")
        return step if isinstance(step, int) else None

    def section(self, name: str) -> Mapping[str, Any]:
        """`sampling` or `task_settings` of the header; empty where it is not there."""
        value = self.header.get(name)
        return value if isinstance(value, dict) else {}

    @cached_property
    def samples(self) -> Sequence[SampleRecord]:
        """InputError where there are none: figures alone cannot be paired by problem."""
        path = self.path.with_suffix(".jsonl")
        if not path.is_file():
            fix = "evaluate again, or compare figures alone with --scores"
            raise InputError("the responses of this evaluation are gone", where=str(path), fix=fix)
        return read_samples(path)

    @property
    def passes(self) -> list[list[SampleRecord]]:
        """The first responses to all problems, the second ones, and so on: each is an evaluation in itself."""
        found: dict[int, list[SampleRecord]] = {}
        for sample in self.samples:
            found.setdefault(sample.sample, []).append(sample)
        return [found[number] for number in sorted(found)]


def read_sittings(folder: Path) -> list[Sitting]:
    """Every evaluation of the run in its `evals`, in the order of names. Files that are no evaluations (a probe) are
    passed over, and so are evaluations of no checkpoint (the base's) beside those of checkpoints; a model that was
    served has none of the latter. A file that cannot be read is an InputError."""
    found = [read_sitting(path) for path in sorted(folder.glob("*.json"))]
    sittings = [sitting for sitting in found if sitting is not None]
    return [sitting for sitting in sittings if sitting.step is not None] or sittings


def read_sitting(path: Path) -> Sitting | None:
    """None where it is no evaluation."""
    sitting = Sitting(path, _header(path))
    return sitting if "accuracy" in sitting.header and "task" in sitting.header else None


def latest(sittings: Sequence[Sitting]) -> list[Sitting]:
    """Those of the latest checkpoint."""
    last = max((sitting.step for sitting in sittings if sitting.step is not None), default=None)
    return [sitting for sitting in sittings if sitting.step == last]


def choose_exam(sittings: Mapping[str, Sequence[Sitting]], wanted: str | None) -> dict[str, list[Sitting]]:
    """By the run's name, its sittings of the exam to compare: the one that `wanted` names (`*` stands for anything),
    or the only one that all runs share, or the only one that each has, under whatever name."""
    names = {run: _names(found, wanted) for run, found in sittings.items()}
    for run, held in names.items():
        if not held:
            raise _no_such_exam(run, sittings[run], wanted)
    shared = [name for name in next(iter(names.values())) if all(name in held for held in names.values())]
    if len(shared) > 1:
        fix = f"choose one before you look, by --eval: {', '.join(shared)}"
        raise InputError(f"the runs share {len(shared)} evaluations", where="egpo compare", fix=fix)
    if not shared and any(len(held) > 1 for held in names.values()):
        held_by = "; ".join(f"{run}: {', '.join(held)}" for run, held in names.items())
        raise InputError("the runs share no evaluation", where="egpo compare", fix=f"evaluate them alike ({held_by})")
    chosen = {run: shared[0] if shared else held[0] for run, held in names.items()}
    return {run: latest([s for s in found if s.exam == chosen[run]]) for run, found in sittings.items()}


def _names(sittings: Sequence[Sitting], wanted: str | None) -> list[str]:
    names = dict.fromkeys(sitting.exam for sitting in sittings)
    return [name for name in names if wanted is None or fnmatchcase(name, wanted)]


def _no_such_exam(run: str, sittings: Sequence[Sitting], wanted: str | None) -> InputError:
    held = ", ".join(dict.fromkeys(sitting.exam for sitting in sittings))
    if not held:
        return InputError("this run has no evaluation", where=run, fix=f"make one: egpo eval {run}")
    return InputError(f"no evaluation `{wanted}`", where=run, fix=f"there are: {held}")


def _header(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        fix = "evaluate again, or remove it"
        raise InputError(f"cannot be read ({error!s:.80})", where=str(path), fix=fix) from error
    return value if isinstance(value, dict) else {}


_OUTPUTS = ("results.csv", "results.html", "report*.html", "compare*.json")


@dataclass(frozen=True)
class Entrant:
    """`name` is its folder's, or as much of the path as tells it apart. `sittings` are of one exam and one checkpoint:
    several are evaluations of one model again. `is_trained` unless it is a plain model: that has no settings and no
    seed. `row_digests` are the digests of its data, with that of the rows in place of that of a file's bytes where an
    older run recorded the latter and the file is still there."""

    name: str
    config_yaml: str
    provenance: Provenance | None
    sittings: Sequence[Sitting]
    is_trained: bool = True
    row_digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def seed(self) -> int | None:
        return self.provenance.seed if self.provenance else None


def read_entrants(paths: Sequence[Path], exam: str | None = None) -> list[Entrant]:
    """Plain models, which are given by files of their evaluations, then runs in the order given, each folder once.
    InputError where one is no run, or they sat no exam together."""
    paths = [path for path in paths if not _is_output(path)]
    files = [path for path in paths if path.suffix == ".json" and path.is_file()]
    models = plain_models(files)
    folders = list({path.resolve(): RunFolder(path) for path in paths if path not in files}.values())
    for folder in folders:
        _require_run(folder)
    if len(models) + len(folders) < 2:
        entered = [*(model.name for model in models), *(str(folder.path) for folder in folders)]
        what = f"{len(entered) or 'no'} run to compare" + "".join(f": {name}" for name in entered)
        raise InputError(what, where="egpo compare", fix="name two at least, as in: egpo compare runs/grpo runs/egpo")
    return [*models, *_runs(folders, exam)]


def _is_output(path: Path) -> bool:
    """What we write beside runs: `egpo compare runs/*` means the runs."""
    return path.is_file() and any(path.match(pattern) for pattern in _OUTPUTS)


def plain_models(files: Sequence[Path]) -> list[Entrant]:
    """By their labels: several files of one model are evaluations again."""
    by_label: dict[str, list[Sitting]] = {}
    for path in dict.fromkeys(files):
        sitting = read_sitting(path)
        if sitting is None:
            raise InputError(
                "is no evaluation", where=str(path), fix="give an `evals/<name>.json` that `egpo eval` wrote"
            )
        by_label.setdefault(str(sitting.header.get("label")), []).append(sitting)
    return [Entrant(label, "", None, sittings, is_trained=False) for label, sittings in by_label.items()]


def _runs(folders: Sequence[RunFolder], exam: str | None) -> list[Entrant]:
    if not folders:
        return []
    names = distinct_names([folder.path.resolve() for folder in folders])
    by_path = {str(folder.path): read_sittings(folder.evals) for folder in folders}
    chosen = choose_exam(by_path, exam)
    return [_entrant(folder, name, chosen[str(folder.path)]) for folder, name in zip(folders, names, strict=True)]


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of each path, as few as tell all of them apart."""
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _entrant(folder: RunFolder, name: str, sittings: Sequence[Sitting]) -> Entrant:
    try:
        text = folder.config.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read ({error})", where=str(folder.config), fix="restore it") from error
    provenance = read_provenance(folder.provenance) if folder.provenance.is_file() else None
    digests = _row_digests(folder, text, provenance.data) if provenance else {}
    return Entrant(name, text, provenance, sittings, row_digests=digests)


def _row_digests(folder: RunFolder, config_yaml: str, recorded: Mapping[str, str]) -> dict[str, str]:
    """A digest of bytes becomes one of rows if the file with these bytes is found where the run read it."""
    found = dict(recorded)
    for split, digest in recorded.items():
        if not digest.startswith(ROWS):
            files = [path for path in _files_of(folder, config_yaml, split) if path.is_file()]
            same = next((path for path in files if file_digest(path) == digest), None)
            found[split] = digest if same is None else data_digest(same)
    return found


def _files_of(folder: RunFolder, config_yaml: str, split: str) -> Iterator[Path]:
    """verl's own copy, the prepared folder of the task, the file of a supervised training."""
    yield folder.path / "verl" / "data" / f"{split}.parquet"
    try:
        config = yaml.safe_load(config_yaml)
    except yaml.YAMLError:  # said where the settings are compared
        return
    section = config if isinstance(config, dict) else {}
    source = ((section.get("task") or {}).get("settings") or {}).get("source")
    if isinstance(source, str):
        yield Path(source) / f"{split}.parquet"
    key = {"train": "path", "evaluation": "eval_path"}.get(split)
    if key and isinstance(path := (section.get("data") or {}).get(key), str):
        yield Path(path)


def _require_run(folder: RunFolder) -> None:
    if not folder.path.is_dir():
        raise InputError("no such folder", where=str(folder.path), fix="give the folder of a run, as runs/<name>")
    if not folder.config.is_file():
        fix = "give a folder that `egpo train` wrote, with config.yaml in it"
        raise InputError("is no run", where=str(folder.path), fix=fix)
