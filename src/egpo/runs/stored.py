"""The reader of what a run has written: config, provenance, metrics, checkpoints, evaluations and probe. No torch.

Reports, comparisons, evaluations, merges and the results table read a run folder through `StoredRun`. Each file is read
on first use; a missing file gives an empty value or None, and a damaged one raises InputError. `RunFolder` defines the
names of the files.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from egpo.errors import InputError
from egpo.fingerprints import unsealed
from egpo.runs.checkpoint_manifest import MANIFEST
from egpo.runs.folder import ACTOR, MODEL, SHARD, RunFolder, checkpoint_step, rollouts_step
from egpo.runs.health import Note, read_notes
from egpo.runs.json_lines import lines_file
from egpo.runs.metrics import read_metrics
from egpo.runs.provenance import Provenance, read_provenance

_REPEATS = re.compile(r"[-_.](step|seed|run)[-_]?\d+$")
"""Endings of a file name in which repeated evaluations on the same exam (task and sampling settings) differ, such as
`-seed3` and `-step40` in `countdown-n8-t1-seed3-step40`."""


@dataclass(frozen=True)
class EvaluationFile:
    """One file `evals/<name>.json`. `header` is its content; the responses are in `evals/<name>.jsonl`."""

    path: Path
    header: Mapping[str, Any]

    @property
    def is_evaluation(self) -> bool:
        """Whether the file contains an accuracy on a named task. The folder may contain other JSON files too."""
        return "accuracy" in self.header and "task" in self.header

    @property
    def label(self) -> str:
        """The name of the evaluated model; the file's name if none was recorded."""
        return str(self.header.get("label") or self.path.stem)

    @property
    def step(self) -> int | None:
        """The step of the evaluated checkpoint; None for a model that is not a checkpoint of the run."""
        step = self.header.get("step")
        return step if isinstance(step, int) else None

    @property
    def exam(self) -> str:
        """The file's name without endings such as `-step40`, `-seed3` and `-run2`.

        It is the same for repeated evaluations with the same task and sampling settings.
        """
        name, shorter = self.path.stem, ""
        while (shorter := _REPEATS.sub("", name)) != name:
            name = shorter
        return name

    def section(self, name: str) -> Mapping[str, Any]:
        """Return an object inside the header, such as `sampling` or `task_settings`; an empty one if it is missing."""
        value = self.header.get(name)
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint on disk. `actor` is the folder with verl's shards, a model folder, or both; `step` may be None."""

    actor: Path
    step: int | None

    @property
    def model(self) -> Path:
        """The model folder: config and tokenizer, and the weights unless they are in shards."""
        return self.actor / MODEL

    @property
    def is_sharded(self) -> bool:
        """Whether verl has written the weights as one file per rank."""
        return any(SHARD.fullmatch(path.name) for path in self.actor.glob("model_world_size_*"))

    @property
    def exists(self) -> bool:
        return self.is_sharded or self.model.is_dir()

    @property
    def run(self) -> RunFolder | None:
        """The run folder that contains this checkpoint; None for a checkpoint outside of any run."""
        run = RunFolder(self.actor.parent.parent.parent)
        return run if run.config.is_file() and self.actor.parent.parent == run.checkpoints else None


@dataclass(frozen=True)
class StoredRun:
    """The content of a run folder. `name` distinguishes the run from the others in a report or comparison."""

    folder: RunFolder
    name: str

    @classmethod
    def at(cls, path: Path) -> "StoredRun":
        """Return the run at `path`, named after its folder."""
        return cls(RunFolder(path), path.resolve().name)

    @cached_property
    def config_yaml(self) -> str:
        """The text of `config.yaml`; empty if there is none yet."""
        path = self.folder.config
        try:
            return path.read_text(encoding="utf-8") if path.is_file() else ""
        except (OSError, ValueError) as error:
            raise InputError(f"the config cannot be read ({error})", where=str(path), fix="restore the file") from error

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The config as plain values, not validated: a run of another version of egpo may have other keys."""
        try:
            value = yaml.safe_load(self.config_yaml)
        except yaml.YAMLError as error:
            where = str(self.folder.config)
            raise InputError("the config is not YAML", where=where, fix="restore the file") from error
        if not isinstance(value, dict) and self.folder.config.is_file():
            what = "the config has no settings" if value is None else "the config is not a mapping of settings"
            raise InputError(what, where=str(self.folder.config), fix="restore the file")
        return value if isinstance(value, dict) else {}

    def setting(self, section: str, key: str) -> str:
        """Return one value of the config as text, such as that of `algorithm.estimator`; empty if it is missing."""
        inner = self.config.get(section)
        return str(inner.get(key, "")) if isinstance(inner, dict) else ""

    @property
    def planned_steps(self) -> int | None:
        """The number of steps in the config; None for a supervised run that counts epochs."""
        steps = self.config.get("steps")
        return steps if isinstance(steps, int) else None

    @cached_property
    def provenance(self) -> Provenance | None:
        return read_provenance(self.folder.provenance) if self.folder.provenance.is_file() else None

    @cached_property
    def metrics(self) -> Sequence[Mapping[str, Any]]:
        """The lines of `metrics.jsonl`. Raise InputError if the file was cut off."""
        lines = read_metrics(self.folder.metrics) if lines_file(self.folder.metrics) else []
        last = max((step_of(line) or 0 for line in lines), default=0)
        saved = [step for step, one in self.checkpoints.items() if (one.actor / MANIFEST).is_file()]
        if saved and last < saved[-1]:  # the embedded engine writes the metrics of a step before its checkpoint
            what = f"the file ends at step {last}, but there is a checkpoint of step {saved[-1]}"
            raise InputError(what, where=str(self.folder.metrics), fix="restore the file")
        return lines

    @cached_property
    def timings(self) -> Sequence[Mapping[str, Any]]:
        """The lines of `timings.jsonl`."""
        return read_metrics(self.folder.timings) if lines_file(self.folder.timings) else []

    @property
    def last_step(self) -> int:
        """The last step with metrics; 0 if no step has been recorded yet."""
        return max((step_of(line) or 0 for line in self.metrics), default=0)

    @cached_property
    def notes(self) -> Sequence[Note]:
        """The notes of health rules in `health.jsonl`."""
        return read_notes(self.folder.health)

    @property
    def rollout_steps(self) -> list[int]:
        """The steps whose responses are in `rollouts/`, in ascending order."""
        steps = map(rollouts_step, self.folder.rollouts.glob("*.jsonl"))
        return sorted(step for step in steps if step is not None)

    @cached_property
    def checkpoints(self) -> Mapping[int, StoredCheckpoint]:
        """Every checkpoint of the run: step -> checkpoint, in ascending order."""
        return checkpoints_in(self.folder.checkpoints)

    @cached_property
    def evaluations(self) -> Sequence[EvaluationFile]:
        """Every JSON file in `evals/` except the probe's, in the order of file names."""
        return [one for one in evaluation_files(self.folder.evals) if one.path != self.folder.probe]

    @cached_property
    def probe(self) -> Mapping[str, Any] | None:
        """The content of `evals/probe.json`; None if the run was not probed."""
        return read_json_object(self.folder.probe) if self.folder.probe.is_file() else None


def stored_runs(paths: Sequence[Path], *, need_config: bool = False) -> list[StoredRun]:
    """Return the runs in these folders, in the given order, each folder once, with distinct names.

    Raise InputError if a folder is not a run: it has neither config nor metrics, or, with `need_config`, no config.
    """
    folders = list({path.resolve(): RunFolder(path) for path in paths}.values())
    for folder in folders:
        _require_run(folder, need_config)
    names = distinct_names([folder.path.resolve() for folder in folders])
    return [StoredRun(folder, name) for folder, name in zip(folders, names, strict=True)]


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return a name for each path: its last parts, as few as are needed to make all names different."""
    for depth in range(1, max((len(path.parts) for path in paths), default=0) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def evaluation_files(folder: Path) -> list[EvaluationFile]:
    """Return every JSON file in a folder, in the order of file names."""
    return [EvaluationFile(path, read_json_object(path)) for path in sorted(folder.glob("*.json"))]


def checkpoints_in(folder: Path) -> dict[int, StoredCheckpoint]:
    """Return the checkpoints `global_step_N` in a folder: N -> checkpoint, in ascending order."""
    found = {step: path for path in folder.glob("global_step_*") if (step := checkpoint_step(path)) is not None}
    return {step: StoredCheckpoint(found[step] / ACTOR, step) for step in sorted(found)}


def checkpoint_at(path: Path) -> StoredCheckpoint | None:
    """Return the checkpoint at a path, which may be `global_step_N`, its `actor` or `actor/huggingface`; else None."""
    whole = path.resolve()
    inside = [whole.parent] if whole.name == MODEL else []
    places = (StoredCheckpoint(actor, checkpoint_step(actor.parent)) for actor in (whole, whole / ACTOR, *inside))
    return next((place for place in places if place.exists), None)


def latest_step(folder: Path, steps: Sequence[int]) -> int:
    """Return the step in `latest_checkpointed_iteration.txt` of a folder of checkpoints, else the highest of `steps`.

    The file is written after its checkpoint is complete; a checkpoint of a higher step may be incomplete.
    """
    pointer = folder / RunFolder(folder.parent).latest.name
    text = pointer.read_text(encoding="utf-8", errors="replace").strip() if pointer.is_file() else ""
    return int(text) if text.isdecimal() and int(text) in steps else max(steps)


def step_of(line: Mapping[str, Any]) -> int | None:
    """Return the step of a line of metrics; None if the line has no step."""
    step = line.get("step")
    return step if isinstance(step, int) else None


def read_json_object(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in a file; an empty one for any other JSON value. Raise InputError if it is not JSON,
    or if its seal is broken."""
    try:
        value = unsealed(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        fix = "write the file again, or remove it"
        raise InputError(f"the file cannot be read ({error!s:.80})", where=str(path), fix=fix) from error
    return value if isinstance(value, dict) else {}


def _require_run(folder: RunFolder, need_config: bool) -> None:
    if folder.config.is_file() or (lines_file(folder.metrics) and not need_config):
        return
    if not folder.path.is_dir():
        fix = "give the folder of a run, such as runs/<name>"
        raise InputError("no such folder", where=str(folder.path), fix=fix)
    inner = sorted(path.name for path in folder.path.iterdir() if (path / folder.config.name).is_file())
    fix = "give a folder that `egpo train` wrote, with config.yaml and metrics.jsonl"
    if inner:
        fix = f"give the runs inside the folder: {' '.join(str(folder.path / name) for name in inner[:4])}"
    raise InputError("this is not a run folder", where=str(folder.path), fix=fix)
