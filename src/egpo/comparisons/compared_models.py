"""The models of a comparison, and which of their evaluations are compared.

A compared model is a run, with its settings, provenance and evaluations, or a plain model (such as the base model),
which has evaluations only. All must have been evaluated on the same exam: task, problems and sampling settings.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

import yaml

from egpo.errors import InputError
from egpo.evals.responses import StoredEvaluation
from egpo.files import ROWS
from egpo.runs.provenance import Provenance
from egpo.runs.stored import StoredRun, read_json_object, stored_runs

_OUTPUTS = ("results.csv", "results.html", "report*.html", "compare*.json")


@dataclass(frozen=True)
class ComparedModel:
    """A run, or a plain model if `run` is None. All `evaluations` are of one checkpoint on the same exam."""

    name: str
    evaluations: Sequence[StoredEvaluation]
    run: StoredRun | None = None

    @property
    def is_trained(self) -> bool:
        """Whether the model is a run. A plain model has neither settings nor a seed."""
        return self.run is not None

    @property
    def config_yaml(self) -> str:
        return self.run.config_yaml if self.run else ""

    @property
    def provenance(self) -> Provenance | None:
        return self.run.provenance if self.run else None

    @property
    def seed(self) -> int | None:
        return self.provenance.seed if self.provenance else None

    @property
    def data_digests(self) -> Mapping[str, str]:
        """The digests of the data that the run recorded: split -> digest."""
        return self.provenance.data if self.provenance else {}

    @cached_property
    def row_digests(self) -> Mapping[str, str]:
        """The digests of the rows of the data: split -> digest.

        A run of an earlier version recorded the digest of a file's bytes. It is replaced by the digest of the rows if
        the file still exists with the same bytes.
        """
        if self.run is None:
            return {}
        return {
            split: digest if digest.startswith(ROWS) else _row_digest(self.run, split, digest)
            for split, digest in self.data_digests.items()
        }


def read_compared_models(paths: Sequence[Path], exam: str | None = None) -> list[ComparedModel]:
    """Return the plain models, given by evaluation files, then the runs in the given order, each folder once.

    `exam` is a pattern for the name of the evaluation to compare. Raise InputError if a folder is not a run, if there
    are fewer than two models, or if they have no evaluation in common.
    """
    paths = [path for path in paths if not _is_output(path)]
    files = [path for path in paths if path.suffix == ".json" and path.is_file()]
    models = plain_models(files)
    runs = stored_runs([path for path in paths if path not in files], need_config=True)
    if len(models) + len(runs) < 2:
        given = [*(model.name for model in models), *(str(run.folder.path) for run in runs)]
        what = "fewer than two runs to compare" + "".join(f": {name}" for name in given)
        fix = "give at least two runs, as in: egpo compare runs/grpo runs/egpo"
        raise InputError(what, where="egpo compare", fix=fix)
    return [*models, *_compared_runs(runs, exam)]


def plain_models(files: Sequence[Path]) -> list[ComparedModel]:
    """Read evaluation files of models that are not runs. Files with the same label are evaluations of one model."""
    by_label: dict[str, list[StoredEvaluation]] = {}
    for path in dict.fromkeys(files):
        evaluation = StoredEvaluation(path, read_json_object(path))
        if not evaluation.is_evaluation:
            fix = "give a file `evals/<name>.json` that `egpo eval` wrote"
            raise InputError("the file is not an evaluation", where=str(path), fix=fix)
        by_label.setdefault(str(evaluation.header.get("label")), []).append(evaluation)
    return [ComparedModel(label, evaluations) for label, evaluations in by_label.items()]


def evaluations_of(run: StoredRun) -> list[StoredEvaluation]:
    """Return the evaluations of the run's checkpoints, in the order of file names.

    If none has a step, all evaluations are returned, because a checkpoint evaluated through a server has no step.
    """
    found = [StoredEvaluation(file.path, file.header) for file in run.evaluations if file.is_evaluation]
    return [evaluation for evaluation in found if evaluation.step is not None] or found


def latest(evaluations: Sequence[StoredEvaluation]) -> list[StoredEvaluation]:
    """Return the evaluations of the latest checkpoint: those with the highest step."""
    last = max((evaluation.step for evaluation in evaluations if evaluation.step is not None), default=None)
    return [evaluation for evaluation in evaluations if evaluation.step == last]


def choose_exam(
    evaluations: Mapping[str, Sequence[StoredEvaluation]], wanted: str | None
) -> dict[str, list[StoredEvaluation]]:
    """Return the evaluations to compare: run -> evaluations of its latest checkpoint on the chosen exam.

    Only exams that match `wanted` (`*` matches anything) are considered. The chosen exam is the only one that all runs
    share; if they share none and each run has a single exam, it is that one for each run.
    """
    names = {run: _names(found, wanted) for run, found in evaluations.items()}
    for run, held in names.items():
        if not held:
            raise _no_such_exam(run, evaluations[run], wanted)
    shared = [name for name in next(iter(names.values())) if all(name in held for held in names.values())]
    if len(shared) > 1:
        fix = f"choose one with --eval, before you look at any results: {', '.join(shared)}"
        what = f"the runs have {len(shared)} evaluations in common, and only one can be compared"
        raise InputError(what, where="egpo compare", fix=fix)
    if not shared and any(len(held) > 1 for held in names.values()):
        held_by = "; ".join(f"{run}: {', '.join(held)}" for run, held in names.items())
        fix = f"evaluate all runs with the same task and sampling settings ({held_by})"
        raise InputError("the runs have no evaluation in common", where="egpo compare", fix=fix)
    chosen = {run: shared[0] if shared else held[0] for run, held in names.items()}
    return {run: latest([one for one in found if one.exam == chosen[run]]) for run, found in evaluations.items()}


def _names(evaluations: Sequence[StoredEvaluation], wanted: str | None) -> list[str]:
    names = dict.fromkeys(evaluation.exam for evaluation in evaluations)
    return [name for name in names if wanted is None or fnmatchcase(name, wanted)]


def _no_such_exam(run: str, evaluations: Sequence[StoredEvaluation], wanted: str | None) -> InputError:
    known = ", ".join(dict.fromkeys(evaluation.exam for evaluation in evaluations))
    if not known:
        return InputError("this run has no evaluation", where=run, fix=f"make one: egpo eval {run}")
    return InputError(f"the run has no evaluation `{wanted}`", where=run, fix=f"choose from: {known}")


def _compared_runs(runs: Sequence[StoredRun], exam: str | None) -> list[ComparedModel]:
    if not runs:
        return []
    chosen = choose_exam({str(run.folder.path): evaluations_of(run) for run in runs}, exam)
    return [ComparedModel(run.name, chosen[str(run.folder.path)], run) for run in runs]


def _is_output(path: Path) -> bool:
    """Return whether this file is an output of egpo beside the runs, which `egpo compare runs/*` must ignore."""
    return path.is_file() and any(path.match(pattern) for pattern in _OUTPUTS)


def _row_digest(run: StoredRun, split: str, digest: str) -> str:
    """Return the digest of the rows of the data file whose bytes have `digest`; `digest` if no such file."""
    files = [path for path in _data_files(run, split) if path.is_file()]
    if not files:
        return digest
    from egpo.data.manifest import data_digest, file_digest  # imports pyarrow, which few comparisons need

    same = next((path for path in files if file_digest(path) == digest), None)
    return digest if same is None else data_digest(same)


def _data_files(run: StoredRun, split: str) -> Iterator[Path]:
    """Yield the files from which the run may have read a split: verl's copy, the task's prepared data, or the file for
    supervised training."""
    yield run.folder.verl / "data" / f"{split}.parquet"
    try:
        config = yaml.safe_load(run.config_yaml)
    except yaml.YAMLError:  # reported later, when the settings are compared
        return
    section = config if isinstance(config, dict) else {}
    source = ((section.get("task") or {}).get("settings") or {}).get("source")
    if isinstance(source, str):
        yield Path(source) / f"{split}.parquet"
    key = {"train": "path", "evaluation": "eval_path"}.get(split)
    if key and isinstance(path := (section.get("data") or {}).get(key), str):
        yield Path(path)
