"""A run's files, back to how they were after a step: it is about to take the later ones again.

What a run says about itself, step by step: to its files, to trackers, and on the screen.
"""

from collections.abc import Mapping
from contextlib import suppress

from egpo.errors import EgpoError, warn_once
from egpo.runs.folder import RunFolder, rollouts_step
from egpo.runs.health import Health, Note, NoteStream, read_notes
from egpo.runs.live import LiveView
from egpo.runs.metrics import MetricStream, read_metrics
from egpo.runs.trackers import Trackers

NOTHING_YET = -1
"""Before the first line of the metrics, which a validation before the first step writes as step 0."""


def require_rewindable(folder: RunFolder, step: int, *, gaps: bool = False) -> None:
    """An InputError where `rewind` would raise one: to be asked before anything of later steps is removed."""
    MetricStream(folder.metrics).size_after(step, gaps=gaps)
    MetricStream(folder.timings).size_after(step, gaps=True)
    NoteStream(folder.health).size_after(step)


def rewind(folder: RunFolder, step: int, *, gaps: bool = False) -> None:
    """What the run has written about later steps goes. Unless `gaps`, every earlier step must have its metrics."""
    MetricStream(folder.metrics).forget_after(step, gaps=gaps)
    MetricStream(folder.timings).forget_after(step, gaps=True)
    NoteStream(folder.health).forget_after(step)
    for path in folder.rollouts.glob("*.jsonl"):
        number = rollouts_step(path)
        if number is not None and number > step:
            path.unlink()


class Ledger:
    """What the clock says has a file of its own, so that `metrics.jsonl` is the same for the same run."""

    def __init__(self, folder: RunFolder, view: LiveView, trackers: Trackers) -> None:
        self._view, self._trackers = view, trackers
        self._metrics, self._timings = MetricStream(folder.metrics), MetricStream(folder.timings)
        self._notes = NoteStream(folder.health)
        history = read_metrics(folder.metrics) if folder.metrics.exists() else []
        self._health = Health(history=history, notes=read_notes(folder.health))

    def record(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        self._timings.append(step, timings)
        self._metrics.append(step, metrics)
        self._trackers.log(step, {**metrics, **timings})
        self._view.show(step, metrics, timings)
        for note in self._health.observe(step, metrics):
            self._notes.append(note)
            self._view.note(note)

    def sync(self) -> None:
        """On the disk: before a checkpoint that counts on these lines becomes visible."""
        for stream in (self._metrics, self._timings, self._notes):
            stream.sync()

    def tell_of(self, error: EgpoError, step: int, saved: int) -> None:
        """A checkpoint that could not be written, where training goes on without it."""
        fault = error.faults[0]
        note = Note(step, f"save_{step}", "danger", f"{fault.where}: {fault.what}", fault.fix)
        # On a disk that is full to the last byte the note cannot be kept either: the warning can be seen.
        with suppress(EgpoError):
            self._notes.append(note)
        self._view.note(note)
        newest = f"the newest checkpoint is that of step {saved}" if saved else "there is no checkpoint yet"
        warn_once(f"save {step}", f"{fault.what}; training goes on, and {newest}")
