"""The table of all runs in a folder that `egpo results` prints. It is read from the run folders every time.

A run has one row for each kind of evaluation (task and sampling settings), or one row if it was not evaluated. A folder
that cannot be read has a row with the error as its status.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import fmean

from egpo.comparisons.compared_models import evaluations_of, latest
from egpo.errors import EgpoError, InputError
from egpo.evals.responses import SampleRecord, StoredEvaluation
from egpo.files import ROWS
from egpo.model_sources import display_name
from egpo.runs.folder import RunFolder
from egpo.runs.stored import StoredRun, step_of


@dataclass(frozen=True)
class ResultRow:
    """One row of the table. `mean` is the mean accuracy in percent over repeated evaluations, `evaluations` lists each.

    Unknown cells are empty.
    """

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
        """The values in the order of `COLUMNS`."""
        return astuple(self)


COLUMNS = tuple(field.name for field in fields(ResultRow))


def read_results(runs: Path) -> list[ResultRow]:
    """Return the rows of all runs in a folder, sorted by name.

    Raise InputError if the folder does not exist, is empty, or is itself a run.
    """
    if not runs.is_dir():
        raise InputError("no such folder", where=str(runs), fix="give the folder that contains the runs")
    if _is_run(runs):
        raise InputError(
            "this folder is a run",
            where=str(runs),
            fix=f"give the folder that contains the run: {runs.absolute().parent}",
        )
    folders = _run_folders(runs)
    if not folders:
        raise InputError("there are no runs in this folder", where=str(runs), fix="train one: egpo train RECIPE")
    return [row for folder in folders for row in _rows(folder, str(folder.relative_to(runs)))]


def _run_folders(runs: Path) -> list[Path]:
    """Return every folder inside `runs`; a folder that is not a run but contains runs is replaced by these runs.

    A folder that can also be reached through a symbolic link is returned once, by its own path.
    """
    folders = [path for path in runs.iterdir() if path.is_dir() and not path.name.startswith(".")]
    places = [place for folder in sorted(folders) for place in _inner_runs(folder) or [folder]]
    known: dict[Path, Path] = {}
    for place in sorted(places, key=lambda place: place.resolve() != place.absolute()):
        known.setdefault(place.resolve(), place)
    return sorted(known.values())


def _inner_runs(folder: Path) -> list[Path]:
    """Return the runs inside a folder that is not itself a run; an empty list if the folder cannot be listed."""
    try:
        return [] if _is_run(folder) else sorted(path for path in folder.iterdir() if path.is_dir() and _is_run(path))
    except OSError:
        return []


def _is_run(folder: Path) -> bool:
    return RunFolder(folder).config.is_file()


def _rows(folder: Path, name: str) -> list[ResultRow]:
    """Return the rows of one run folder. If it cannot be read, return one row with the error as its status."""
    try:
        return _of_run(StoredRun.at(folder), name)
    except EgpoError as error:
        return [ResultRow(name, status=f"unreadable: {error}")]
    except Exception as error:  # boundary: files in a run folder may contain anything
        return [ResultRow(name, status=f"unreadable: {type(error).__name__}: {error}")]


def _of_run(run: StoredRun, name: str) -> list[ResultRow]:
    if not run.folder.config.is_file():
        # `egpo probe RECIPE` writes to the folder of a run that has not started yet.
        probed = run.folder.probe.is_file()
        return [ResultRow(name, status="probed, not trained" if probed else "not a run: no config.yaml")]
    known = _known(run)
    evaluations, status = evaluations_of(run), _status(run)
    if not evaluations:
        return [ResultRow(name, status=f"{status}, not evaluated", **known)]
    exams = dict.fromkeys(evaluation.exam for evaluation in evaluations)
    return [
        ResultRow(name, status=status, evaluation=exam, **_figures([e for e in evaluations if e.exam == exam]), **known)
        for exam in exams
    ]


def _known(run: StoredRun) -> dict[str, str]:
    """Return the cells of a run's rows that do not depend on an evaluation."""
    supervised, provenance = "task" not in run.config, run.provenance
    data = run.setting("data", "path") if supervised else run.setting("task", "name")
    digest = provenance.data.get("train", "").removeprefix(ROWS) if provenance else ""
    return {
        "method": "sft" if supervised else run.setting("algorithm", "estimator"),
        "base": display_name(run.setting("model", "path")),
        "data": f"{data} {digest[:8]}".strip(),
        "seed": str(run.config.get("seed", "")),
        "date": provenance.start.time[:10] if provenance else "",
    }


def _figures(evaluations: Sequence[StoredEvaluation]) -> dict[str, str]:
    """Return the accuracies of the latest checkpoint: of each evaluation, or, if there is only one, of each pass over
    the problems."""
    chosen = latest(evaluations)
    parts = chosen[0].passes if len(chosen) == 1 else [evaluation.samples for evaluation in chosen]
    values = [100 * fmean(sample.acc for sample in judged) for part in parts if (judged := _judged(part))]
    if not values:
        return {}
    return {"mean": f"{fmean(values):.1f}", "evaluations": " ".join(f"{value:.1f}" for value in values)}


def _judged(samples: Sequence[SampleRecord]) -> list[SampleRecord]:
    return [sample for sample in samples if not sample.failed]


def _status(run: StoredRun) -> str:
    if any("step" in line and step_of(line) is None for line in run.metrics):
        raise InputError("a line has a step that is not a number", where=str(run.folder.metrics))
    done, planned = run.last_step, run.planned_steps
    if planned is not None:
        return "finished" if done >= planned else f"step {done} of {planned}"
    return f"step {done}"
