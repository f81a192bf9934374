"""The recorder of a run's steps in files, in trackers and on the screen, and the rewinding of a resumed run's files."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from egpo.errors import EgpoError, warn_once
from egpo.runs.folder import RunFolder, rollouts_step
from egpo.runs.health import Health, Note, NoteStream, read_notes
from egpo.runs.json_lines import read_lines
from egpo.runs.live import LiveView
from egpo.runs.metrics import MetricStream
from egpo.runs.sample_table import read_sample_table
from egpo.runs.trackers import Trackers

NOTHING_YET = -1
"""The step number that stands for a run without any metrics. (A validation before training is step 0.)"""


def require_rewindable(folder: RunFolder, step: int, *, gaps: bool = False) -> None:
    """Raise InputError if `rewind` would fail. Call this before anything of the steps after `step` is removed."""
    MetricStream(folder.metrics).size_after(step, gaps=gaps)
    MetricStream(folder.timings).size_after(step, gaps=True)
    NoteStream(folder.health).size_after(step)


def rewind(folder: RunFolder, step: int, *, gaps: bool = False) -> None:
    """Remove what the run has written about steps after `step`, because the resumed run will repeat them.

    If an earlier step has no metrics, raise InputError, unless `gaps` is true.
    """
    MetricStream(folder.metrics).forget_after(step, gaps=gaps)
    MetricStream(folder.timings).forget_after(step, gaps=True)
    NoteStream(folder.health).forget_after(step)
    for path in folder.rollouts.glob("*.jsonl"):
        number = rollouts_step(path)
        if number is not None and number > step:
            path.unlink()


@dataclass(frozen=True)
class StepReport:
    """A finished step, as `on_step` receives it. Step 0 is the validation before training.

    `metrics` has the names of `metrics.jsonl`, `timings` those of `timings.jsonl` in seconds.
    """

    step: int
    num_steps: int
    metrics: Mapping[str, float]
    timings: Mapping[str, float]


OnStep = Callable[[StepReport], bool | None]
"""Called after every step, when its metrics are written; a checkpoint of the step may not be complete yet. Returns
True to stop the run, which is then saved."""


class Ledger:
    """The recorder of the steps of one run.

    Timings have their own file, so that the same run always writes the same `metrics.jsonl`. `num_samples` is the
    number of responses in the table that the trackers get; 0: no table. `ends_at` says in words what ends a response,
    for the health rules; empty if that is not known.
    """

    def __init__(
        self, folder: RunFolder, view: LiveView, trackers: Trackers, num_samples: int = 0, ends_at: str = ""
    ) -> None:
        self._view, self._trackers = view, trackers
        self._folder, self._num_samples = folder, num_samples
        self._metrics, self._timings = MetricStream(folder.metrics), MetricStream(folder.timings)
        self._notes = NoteStream(folder.health)
        history = (line.value for line in read_lines(folder.metrics)) if folder.metrics.exists() else ()
        self._health = Health(history=history, notes=read_notes(folder.health), ends_at=ends_at)

    def record(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """Record a finished step in the files, in the trackers and on the screen, and check the health rules."""
        self._timings.append(step, timings)
        self._metrics.append(step, metrics)
        self._trackers.log(step, {**metrics, **timings})
        self._view.show(step, metrics, timings)
        for note in self._health.observe(step, metrics):
            self._notes.append(note)
            self._view.note(note)

    def send_samples(self, step: int) -> None:
        """Send the table of sample responses to the trackers, if it is asked for and the step wrote its rollouts.

        A file that cannot be read is a warning: training does not depend on it.
        """
        if not self._num_samples:
            return
        try:
            table = read_sample_table(self._folder.rollouts_of(step), self._num_samples)
        except (EgpoError, OSError) as error:
            warn_once("samples not sent", f"the table of samples is not sent ({error}); training continues")
            return
        self._trackers.log_samples(step, table)

    def sync(self) -> None:
        """Flush metrics, timings and health notes to disk. Call this before the checkpoint of the step is published."""
        for stream in (self._metrics, self._timings, self._notes):
            stream.sync()

    def record_failed_save(self, error: EgpoError, step: int, done: int, saved: int, *, continues: bool = True) -> None:
        """Report, after `done` steps, that the checkpoint of `step` could not be written.

        `saved` is the step of the last one; 0 if none. `continues`: whether training continues.
        """
        fault = error.faults[0]
        note = Note(done, f"save_{step}", "danger", f"{fault.where}: {fault.what}", fault.fix)
        # On a full disk the note cannot be written either; the warning below is still printed.
        with suppress(EgpoError):
            self._notes.append(note)
        self._view.note(note)
        newest = f"the latest checkpoint is from step {saved}" if saved else "there is no checkpoint yet"
        goes_on = "training continues, and " if continues else ""
        warn_once(f"save {step}", f"{fault.what}; {goes_on}{newest}")
