"""A run's files, back to how they were after a step: it is about to take the later ones again."""

from egpo.runs.folder import RunFolder
from egpo.runs.health import NoteStream
from egpo.runs.metrics import MetricStream

NOTHING_YET = -1
"""Before the first line of the metrics, which a validation before the first step writes as step 0."""


def require_rewindable(folder: RunFolder, step: int) -> None:
    """An InputError where `rewind` would raise one: to be asked before anything of later steps is removed."""
    MetricStream(folder.metrics).size_after(step)
    MetricStream(folder.timings).size_after(step, gaps=True)
    NoteStream(folder.health).size_after(step)


def rewind(folder: RunFolder, step: int, *, gaps: bool = False) -> None:
    """What the run has written about later steps goes. Unless `gaps`, every earlier step must have its metrics."""
    MetricStream(folder.metrics).forget_after(step, gaps=gaps)
    MetricStream(folder.timings).forget_after(step, gaps=True)
    NoteStream(folder.health).forget_after(step)
    for path in folder.rollouts.glob("step_*.jsonl"):
        number = path.stem.removeprefix("step_")
        if number.isdigit() and int(number) > step:
            path.unlink()
