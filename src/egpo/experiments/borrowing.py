"""What another run of the same folder has done out of the same inputs need not be done again: the probe and the
evaluation of a base that several recipes share."""

import os
from pathlib import Path

from egpo.errors import InputError
from egpo.experiments.experiment import Experiment
from egpo.experiments.job import Job
from egpo.experiments.record import StageRecord
from egpo.files import write_atomically


def borrowed(job: Job, experiment: Experiment) -> str | None:
    """Copies the outputs of a run that has done this very job, and says whose they are; None where none has."""
    home = experiment.run.path
    for path in sorted(home.parent.glob(f"*/{experiment.run.stages.name}")):
        lender = path.parent
        if lender != home and _has_done(path, job):
            _copy(job, home, lender)
            return f"as in {lender}"
    return None


def _has_done(record: Path, job: Job) -> bool:
    try:
        return StageRecord(record).has_done(job)
    except InputError:  # another run's record is no concern of this one
        return False


def _copy(job: Job, home: Path, lender: Path) -> None:
    for path in job.outputs():
        source = lender / os.path.relpath(path, home)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, source.read_bytes())
