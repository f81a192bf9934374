"""The models of a comparison, and which of their evaluations are compared.

A compared model is a run, with its settings, provenance and evaluations, or a plain model (such as the base), which has
evaluations only. All must have been evaluated on one exam: a task, its problems and a way of sampling.
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
    """A run, or a plain model if `run` is None. Several `evaluations` are repetitions of one exam on one checkpoint."""

    name: str
    evaluations: Sequence[StoredEvaluation]
    run: StoredRun | None = None

    @property
    def is_trained(self) -> bool:
        """Whether it is a run: a plain model has neither settings nor a seed."""
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
        """The digests of the data by split, as the run recorded them."""
        return self.provenance.data if self.provenance else {}

    @cached_property
    def row_digests(self) -> Mapping[str, str]:
        """The digests of the data's rows by split.

        An older run recorded the digest of a file's bytes. It is replaced by the digest of the rows if a file with
        these bytes is still where the run read it.
        """
        if self.run is None:
            return {}
        return {
            split: digest if digest.startswith(ROWS) else _row_digest(self.run, split, digest)
            for split, digest in self.data_digests.items()
        }


def read_compared_models(paths: Sequence[Path], exam: str | None = None) -> list[ComparedModel]:
    """Return plain models, given by their evaluation files, then runs in the given order, each folder once.

    `exam` is a pattern for the evaluation's name. InputError if a folder is not a run, if there are fewer than two
    models, or if they have no exam in common.
    """
    paths = [path for path in paths if not _is_output(path)]
    files = [path for path in paths if path.suffix == ".json" and path.is_file()]
    models = plain_models(files)
    runs = stored_runs([path for path in paths if path not in files], need_config=True)
    if len(models) + len(runs) < 2:
        given = [*(model.name for model in models), *(str(run.folder.path) for run in runs)]
        what = f"{len(given) or 'no'} run to compare" + "".join(f": {name}" for name in given)
        raise InputError(what, where="egpo compare", fix="give at least two, as in: egpo compare runs/grpo runs/egpo")
    return [*models, *_compared_runs(runs, exam)]


def plain_models(files: Sequence[Path]) -> list[ComparedModel]:
    """Read evaluation files of models that are not runs; files with the same label are repetitions for one model."""
    by_label: dict[str, list[StoredEvaluation]] = {}
    for path in dict.fromkeys(files):
        evaluation = StoredEvaluation(path, read_json_object(path))
        if not evaluation.is_evaluation:
            fix = "give an `evals/<name>.json` that `egpo eval` wrote"
            raise InputError("not an evaluation", where=str(path), fix=fix)
        by_label.setdefault(str(evaluation.header.get("label")), []).append(evaluation)
    return [ComparedModel(label, evaluations) for label, evaluations in by_label.items()]


def evaluations_of(run: StoredRun) -> list[StoredEvaluation]:
    """Return the evaluations of the run's checkpoints, in the order of file names.

    Evaluations of other models (the base) are returned only if there are no others: a served model has no step.
    """
    found = [StoredEvaluation(file.path, file.header) for file in run.evaluations if file.is_evaluation]
    return [evaluation for evaluation in found if evaluation.step is not None] or found


def latest(evaluations: Sequence[StoredEvaluation]) -> list[StoredEvaluation]:
    """Return the evaluations of the latest checkpoint."""
    last = max((evaluation.step for evaluation in evaluations if evaluation.step is not None), default=None)
    return [evaluation for evaluation in evaluations if evaluation.step == last]


def choose_exam(
    evaluations: Mapping[str, Sequence[StoredEvaluation]], wanted: str | None
) -> dict[str, list[StoredEvaluation]]:
    """Return the evaluations to compare, by run.

    The exam is the one that matches `wanted` (`*` matches anything), or the only one that all runs share, or, if they
    share none and each run has only one, that one.
    """
    names = {run: _names(found, wanted) for run, found in evaluations.items()}
    for run, held in names.items():
        if not held:
            raise _no_such_exam(run, evaluations[run], wanted)
    shared = [name for name in next(iter(names.values())) if all(name in held for held in names.values())]
    if len(shared) > 1:
        fix = f"choose one with --eval before you look at results: {', '.join(shared)}"
        raise InputError(f"the runs share {len(shared)} evaluations", where="egpo compare", fix=fix)
    if not shared and any(len(held) > 1 for held in names.values()):
        held_by = "; ".join(f"{run}: {', '.join(held)}" for run, held in names.items())
        fix = f"evaluate all runs on the same exam ({held_by})"
        raise InputError("the runs share no evaluation", where="egpo compare", fix=fix)
    chosen = {run: shared[0] if shared else held[0] for run, held in names.items()}
    return {run: latest([one for one in found if one.exam == chosen[run]]) for run, found in evaluations.items()}


def _names(evaluations: Sequence[StoredEvaluation], wanted: str | None) -> list[str]:
    names = dict.fromkeys(evaluation.exam for evaluation in evaluations)
    return [name for name in names if wanted is None or fnmatchcase(name, wanted)]


def _no_such_exam(run: str, evaluations: Sequence[StoredEvaluation], wanted: str | None) -> InputError:
    known = ", ".join(dict.fromkeys(evaluation.exam for evaluation in evaluations))
    if not known:
        return InputError("this run has no evaluation", where=run, fix=f"make one: egpo eval {run}")
    return InputError(f"no evaluation `{wanted}`", where=run, fix=f"there are: {known}")


def _compared_runs(runs: Sequence[StoredRun], exam: str | None) -> list[ComparedModel]:
    if not runs:
        return []
    chosen = choose_exam({str(run.folder.path): evaluations_of(run) for run in runs}, exam)
    return [ComparedModel(run.name, chosen[str(run.folder.path)], run) for run in runs]


def _is_output(path: Path) -> bool:
    """Return whether egpo wrote this file beside the runs: `egpo compare runs/*` means the runs only."""
    return path.is_file() and any(path.match(pattern) for pattern in _OUTPUTS)


def _row_digest(run: StoredRun, split: str, digest: str) -> str:
    """Return the digest of the rows of the file whose bytes have this digest; the digest itself if it is gone."""
    files = [path for path in _data_files(run, split) if path.is_file()]
    if not files:
        return digest
    from egpo.data.manifest import data_digest, file_digest  # imports pyarrow, which few comparisons need

    same = next((path for path in files if file_digest(path) == digest), None)
    return digest if same is None else data_digest(same)


def _data_files(run: StoredRun, split: str) -> Iterator[Path]:
    """Yield the files that the run may have read: verl's copy, the task's prepared data, the file for supervised
    training."""
    yield run.folder.verl / "data" / f"{split}.parquet"
    try:
        config = yaml.safe_load(run.config_yaml)
    except yaml.YAMLError:  # reported where the settings are compared
        return
    section = config if isinstance(config, dict) else {}
    source = ((section.get("task") or {}).get("settings") or {}).get("source")
    if isinstance(source, str):
        yield Path(source) / f"{split}.parquet"
    key = {"train": "path", "evaluation": "eval_path"}.get(split)
    if key and isinstance(path := (section.get("data") or {}).get(key), str):
        yield Path(path)
