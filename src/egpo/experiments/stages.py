"""The table of an experiment's stages, and the selection of stages by `--only` and `--from`.

To add a stage: write a function that returns its jobs and one that returns its line in the plan, and add a row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from egpo.errors import InputError, nearest
from egpo.runs.removed import Keep

if TYPE_CHECKING:
    from egpo.experiments.experiment import Experiment
    from egpo.experiments.screen import Screen
    from egpo.experiments.stage_record import StageJob


@dataclass(frozen=True)
class Stage:
    """One stage of an experiment: a row of `STAGES`.

    `summary` is the stage's line in the help; `jobs` returns its jobs, `plan` its line in the dry run. `reads_data`:
    the data must be prepared first. `check` raises InputError if the stage cannot run, before the first stage begins.
    `repeatable`: `--from` runs finished jobs again (a training is resumed instead). `details` returns text to print
    below the plan. `compare` is called once after all recipes of a command, if there are several.
    """

    name: str
    summary: str
    jobs: "Callable[[Experiment, Screen], list[StageJob]]"
    plan: "Callable[[Experiment], str]"
    reads_data: bool = False
    repeatable: bool = True
    check: "Callable[[Experiment], None] | None" = None
    details: "Callable[[Experiment], str] | None" = None
    compare: "Callable[[Sequence[Experiment], Screen], None] | None" = None


def _imported_later(path: str) -> Callable[..., Any]:
    """Return a function that imports `module:name` when called, so that the help can read the table without torch."""
    module, _, name = path.partition(":")

    def call(*values: Any) -> Any:
        return getattr(import_module(f"egpo.experiments.{module}"), name)(*values)

    return call


_ROWS = (
    Stage(
        "prepare",
        "write the task's problems as parquet files",
        jobs=_imported_later("stage_jobs:prepare_jobs"),
        plan=_imported_later("plan_text:prepare_line"),
        check=_imported_later("stage_jobs:require_data_source"),
    ),
    Stage(
        "cold_start",
        "train on the gold answers before RL, if the recipe has `cold_start`",
        jobs=_imported_later("stage_jobs:cold_start_jobs"),
        plan=_imported_later("plan_text:cold_start_line"),
        reads_data=True,
        repeatable=False,
        check=_imported_later("stage_jobs:require_cold_start"),
    ),
    Stage(
        "probe",
        "sample from the model before RL to see whether there is something to learn",
        jobs=_imported_later("stage_jobs:probe_jobs"),
        plan=_imported_later("plan_text:probe_line"),
        reads_data=True,
        check=_imported_later("stage_jobs:require_model"),
    ),
    Stage(
        "train",
        "train, or resume a training that was interrupted",
        jobs=_imported_later("stage_jobs:train_jobs"),
        plan=_imported_later("plan_text:train_line"),
        reads_data=True,
        repeatable=False,
        check=_imported_later("stage_jobs:require_trainable"),
        details=_imported_later("plan_text:train_details"),
    ),
    Stage(
        "merge",
        "merge verl's shards into one model",
        jobs=_imported_later("stage_jobs:merge_jobs"),
        plan=_imported_later("plan_text:merge_line"),
    ),
    Stage(
        "eval",
        "evaluate the base and the trained model on held-out problems",
        jobs=_imported_later("stage_jobs:eval_jobs"),
        plan=_imported_later("plan_text:eval_line"),
        reads_data=True,
        check=_imported_later("stage_jobs:require_evaluated"),
    ),
    Stage(
        "report",
        "write the run's report, and compare the runs if there are several",
        jobs=_imported_later("stage_jobs:report_jobs"),
        plan=_imported_later("plan_text:report_line"),
        compare=_imported_later("pipeline:compare_experiments"),
    ),
)
STAGES: Mapping[str, Stage] = {stage.name: stage for stage in _ROWS}


@dataclass(frozen=True)
class Selection:
    """The stages to run, in the table's order. Those in `again` run even if nothing has changed. `keep`: what stays of
    the checkpoints of an experiment that is trained and evaluated (`experiments.kept`)."""

    stages: tuple[Stage, ...] = _ROWS
    again: tuple[Stage, ...] = ()
    keep: Keep = "all"

    @classmethod
    def of(cls, only: Sequence[str] = (), start: str | None = None) -> "Selection":
        """Select the stages named in `only`; or `start` and all later stages, which run again; or all stages."""
        for name in (*only, *([start] if start else [])):
            if name not in STAGES:
                raise InputError(f"unknown stage `{name}`", where="egpo run", fix=nearest(name, list(STAGES)))
        if only and start:
            raise InputError("--only and --from cannot be combined", where="egpo run", fix="leave one of them out")
        if start:
            later = _ROWS[_ROWS.index(STAGES[start]) :]
            return cls(later, tuple(stage for stage in later if stage.repeatable))
        return cls(tuple(stage for stage in _ROWS if stage.name in only)) if only else cls()
