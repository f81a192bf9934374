"""The stages of an experiment, one after the other: what is done stays done, and what fails says how to go on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from egpo.config import config_to_yaml
from egpo.errors import EgpoError, Fault, InputError, RunInterruptedError
from egpo.experiments.borrowing import borrowed
from egpo.experiments.engines import require_engine
from egpo.experiments.experiment import Experiment
from egpo.experiments.job import Job
from egpo.experiments.record import StageRecord
from egpo.experiments.screen import Screen
from egpo.experiments.selection import Selection
from egpo.experiments.stages import evaluate, merge, prepare, probe, report, train
from egpo.runs.differences import refuse_other_training
from egpo.runs.folder import LOCK_NAME, locked

STAGES: Mapping[str, Callable[[Experiment, Screen], list[Job]]] = {
    "prepare": prepare.jobs,
    "probe": probe.jobs,
    "train": train.jobs,
    "merge": merge.jobs,
    "eval": evaluate.jobs,
    "report": report.jobs,
}


class StageFailedError(EgpoError):
    """What went wrong, in which stage, what is done already, and how to go on. The exit code is the cause's."""

    def __init__(self, cause: EgpoError, faults: list[Fault]) -> None:
        Exception.__init__(self, "\n".join(map(str, faults)))
        self.faults, self.exit_code = faults, cause.exit_code


def run_stages(experiment: Experiment, selection: Selection, screen: Screen) -> None:
    """Every job of the selected stages that is not done, or was done out of something else. One process at a time."""
    with _alone(experiment.run.path):
        _require_trainable(experiment, selection)
        _run_selected(experiment, selection, screen)


def _require_trainable(experiment: Experiment, selection: Selection) -> None:
    """A folder that holds another training is left as it is by every stage: a probe of other data has no place there.
    And a training that is still to come finds its engine here."""
    run, config = experiment.run, experiment.training
    if run.config.is_file():
        refuse_other_training(run.config.read_text(encoding="utf-8"), config_to_yaml(config), str(run.path))
    if "train" in selection.stages and not run.checkpoint_of(config.steps).is_dir():
        require_engine(config)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """A lock of its own: the training takes the run's, and may be under way by itself."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fix = "free some space or mend the permissions, or choose another runs=..."
        raise InputError(f"cannot write there ({error.strerror})", where=str(folder), fix=fix) from error
    with locked(folder, f"{LOCK_NAME}-stages"):
        yield


def _run_selected(experiment: Experiment, selection: Selection, screen: Screen) -> None:
    record = StageRecord(experiment.run.stages)
    finished: list[str] = []
    for stage in selection.stages:
        with _explained(experiment, stage, finished):
            found = STAGES[stage](experiment, screen)
            for job in found:
                _run_job(job, experiment, record, screen, again=stage in selection.again)
            if not found:
                screen.say(f"  {stage}: nothing to do")
        finished.append(stage)


def _run_job(job: Job, experiment: Experiment, record: StageRecord, screen: Screen, *, again: bool) -> None:
    reason = "asked for" if again else record.reason_to_work(job)
    if reason is None:
        screen.say(f"  {job.name}: skipped, nothing has changed")
        return
    screen.say(f"  {job.name}: {reason}")
    lent = borrowed(job, experiment) if job.shared and not again else None
    outcome = lent or job.work()
    record.done(job)
    screen.say(f"  {job.name}: {outcome}")


@contextmanager
def _explained(experiment: Experiment, stage: str, finished: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except EgpoError as error:
        interrupted = isinstance(error, RunInterruptedError)
        kept = f"kept: {', '.join(finished) or 'nothing yet'}"
        fix = "the same command goes on here" if interrupted else "once that is mended, the same command goes on here"
        last = Fault(f"`{stage}` did not come to its end; {kept}", experiment.name, fix)
        # How to resume the run alone is no advice here: the later stages would be missing.
        causes = [replace(fault, fix="") for fault in error.faults] if interrupted else error.faults
        raise StageFailedError(error, [*causes, last]) from error
