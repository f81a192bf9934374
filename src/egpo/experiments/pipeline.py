"""Run experiments, stage by stage: skip finished jobs, reuse results of other runs, compare the runs."""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from egpo.comparisons.comparison import ComparisonOptions, compare_runs
from egpo.config import config_to_yaml
from egpo.errors import EgpoError, Fault, InputError, RunInterruptedError
from egpo.evals.targets import exam_name
from egpo.experiments.bfcl import bfcl_exam
from egpo.experiments.exams import exams_of
from egpo.experiments.experiment import Experiment
from egpo.experiments.kept import remove_surplus
from egpo.experiments.parallel import run_parallel
from egpo.experiments.screen import Screen
from egpo.experiments.stage_record import StageJob, StageRecord
from egpo.experiments.stages import STAGES, Selection, Stage
from egpo.files import write_atomically
from egpo.reports import write_report
from egpo.runs.differences import refuse_other_training
from egpo.runs.folder import LOCK_NAME, locked

LOCKS = ".locks"
"""The folder below `runs` with a lock for each job whose result is shared."""


class StageFailedError(EgpoError):
    """A failed stage: the cause, the stage, the finished stages, and how to continue. The exit code is the cause's."""

    def __init__(self, cause: EgpoError, faults: list[Fault]) -> None:
        Exception.__init__(self, "\n".join(map(str, faults)))
        self.faults, self.exit_code = faults, cause.exit_code


def run_experiments(experiments: Sequence[Experiment], selection: Selection, screen: Screen, parallel: int = 1) -> None:
    """Run the experiments, `parallel` of them at a time, then compare them if there are several.

    After a failure nothing is compared. Finished jobs are kept, and the same call continues after them.
    """
    if parallel > 1 and len(experiments) > 1:
        for experiment in experiments:
            require_runnable(experiment, selection)
        run_parallel(experiments, selection, parallel, screen)
    else:
        run_each(experiments, selection, screen)
    if len(experiments) > 1:
        for stage in selection.stages:
            if stage.compare is not None:
                stage.compare(experiments, screen)


def run_each(experiments: Sequence[Experiment], selection: Selection, screen: Screen) -> None:
    """Run the experiments one after the other. All are checked before the first one begins."""
    for experiment in experiments:
        require_runnable(experiment, selection)
    for experiment in experiments:
        screen.say(f"{experiment.name}: {experiment.recipe} -> {experiment.run.path}")
        _run_stages(experiment, selection, screen)


def run_stages(experiment: Experiment, selection: Selection, screen: Screen) -> None:
    """Run every job of the selected stages that is not done yet or whose inputs have changed."""
    require_runnable(experiment, selection)
    _run_stages(experiment, selection, screen)


def compare_experiments(experiments: Sequence[Experiment], screen: Screen) -> None:
    """Print a verdict for each exam, and write one report of all runs.

    Runs that cannot be compared fairly are not compared. The reason is printed, and is not an error.
    """
    runs = [experiment.run.path for experiment in experiments]
    for name in _exam_names(experiments[0]):
        for line in _verdicts(runs, name):
            screen.say(f"{name}: {line}")
    screen.say(f"report of all runs: {write_report(runs)}")


def require_runnable(experiment: Experiment, selection: Selection) -> None:
    """Raise InputError if the run folder has a training with other settings, or if a selected stage cannot run."""
    run = experiment.run
    if run.config.is_file():
        own, wanted = run.read_config(), config_to_yaml(experiment.training)
        changed = experiment.training.model_dump(mode="json", exclude_defaults=True)
        refuse_other_training(own, wanted, str(run.path), changed)
    for stage in selection.stages:
        if stage.check is not None:
            stage.check(experiment)


def _run_stages(experiment: Experiment, selection: Selection, screen: Screen) -> None:
    with _locked(experiment.run.path):
        record = StageRecord(experiment.run.stages)
        finished: list[str] = []
        for stage in selection.stages:
            with _explained(experiment, stage, finished):
                _run_stage(stage, experiment, record, screen, again=stage in selection.again)
            finished.append(stage.name)
        if selection.keep != "all" and (removed := remove_surplus(experiment, selection.keep)) is not None:
            screen.say(f"  removed {removed}")
            if STAGES["report"] in selection.stages:
                _run_stage(STAGES["report"], experiment, record, screen, again=False)


def _run_stage(stage: Stage, experiment: Experiment, record: StageRecord, screen: Screen, *, again: bool) -> None:
    if stage.reads_data:
        experiment.require_data()
    jobs = stage.jobs(experiment, screen)
    for job in jobs:
        _run_job(job, experiment, record, screen, again=again)
    if not jobs:
        screen.say(f"  {stage.name}: nothing to do")


def _run_job(job: StageJob, experiment: Experiment, record: StageRecord, screen: Screen, *, again: bool) -> None:
    reason = "requested by --from" if again else record.reason_to_work(job)
    if reason is None:
        screen.say(f"  {job.name}: skipped, nothing has changed")
        return
    screen.say(f"  {job.name}: {reason}")
    with _one_at_a_time(job, experiment, screen) if job.shared else nullcontext():
        reused = _reuse(job, experiment) if job.shared and not again else None
        outcome = reused or job.work()
        record.done(job)
    screen.say(f"  {job.name}: {outcome}")


@contextmanager
def _one_at_a_time(job: StageJob, experiment: Experiment, screen: Screen) -> Iterator[None]:
    """Wait for another process that does the same shared job now, so that its result can be reused."""
    folder = experiment.run.path.parent / LOCKS
    folder.mkdir(parents=True, exist_ok=True)

    def waiting(holder: str) -> AbstractContextManager[object]:
        what = f"{job.name}: waiting for process {holder}, which computes the same"
        screen.say(f"  {what}")
        return screen.watched(what)

    with locked(folder, f"{LOCK_NAME}-{job.digest[:16]}", waiting):
        yield


def _reuse(job: StageJob, experiment: Experiment) -> str | None:
    """Copy the job's outputs from another run that has done it, and return a message; None if no run has done it."""
    home = experiment.run.path
    for record in sorted(home.parent.glob(f"*/{experiment.run.stages.name}")):
        other = record.parent
        if other != home and _has_done(record, job):
            return f"copied from {other}" if _copy(job.outputs(), home, other) else f"there already, from {other}"
    return None


def _copy(outputs: Sequence[Path], home: Path, other: Path) -> bool:
    """Copy files from the other run to this one. Return False if none was copied: both runs read the same files."""
    copied = False
    for path in outputs:
        source = other / os.path.relpath(path, home)
        if os.path.realpath(source) != os.path.realpath(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, source.read_bytes())
            copied = True
    return copied


def _has_done(record: Path, job: StageJob) -> bool:
    try:
        return StageRecord(record).has_done(job)
    except InputError:  # a broken record of another run is no reason to stop this run
        return False


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the run folder so that only one process runs its stages. The training itself takes a separate lock."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fix = "free some disk space, fix the permissions, or choose another folder with runs=..."
        raise InputError(f"the run folder cannot be written ({error.strerror})", where=str(folder), fix=fix) from error
    with locked(folder, f"{LOCK_NAME}-stages"):
        yield


@contextmanager
def _explained(experiment: Experiment, stage: Stage, finished: Sequence[str]) -> Iterator[None]:
    """Add to an error of the block which stage failed, which stages are finished, and how to continue."""
    try:
        yield
    except EgpoError as error:
        interrupted = isinstance(error, RunInterruptedError)
        kept = f"finished stages: {', '.join(finished) or 'none'}"
        fix = "run the same command again to continue"
        last = Fault(
            f"stage `{stage.name}` did not finish; {kept}",
            experiment.name,
            fix if interrupted else f"fix the cause, then {fix}",
        )
        # The cause's own fix resumes only the training and would leave out the later stages.
        causes = [replace(fault, fix="") for fault in error.faults] if interrupted else error.faults
        raise StageFailedError(error, [*causes, last]) from error


def _exam_names(experiment: Experiment) -> list[str]:
    """Return the names of the trained model's evaluations, without the step number."""
    chosen = experiment.training.eval
    names = [exam_name(exam) for exam in exams_of(experiment.training)]
    return [*names, bfcl_exam(experiment)] if chosen.bfcl and "trained" in chosen.models else names


def _verdicts(runs: Sequence[Path], exam: str) -> list[str]:
    try:
        found = compare_runs(runs, ComparisonOptions(exam=exam))
    except InputError as error:
        return ["not compared", *(f"  {fault}" for fault in error.faults)]
    return [*(contrast.verdict for contrast in found.contrasts), *(f"note: {note}" for note in found.notes)]
