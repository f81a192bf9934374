"""`sft`: one supervised run, from a recipe to the folder of the trained model."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from egpo.benchmark_cases import Cases, cases_in_rows, joined_cases, read_cases
from egpo.config import SftConfig
from egpo.config.machine import model_folder
from egpo.data.manifest import data_digest
from egpo.data.readers import read_records
from egpo.local.checkpoints.checkpoint import Snapshot
from egpo.local.checkpoints.resume import learned_tensors, restore_learned
from egpo.local.progress_bars import without_progress_bars
from egpo.local.sft.examples import REASONS
from egpo.local.sft.sft_run import SftRun, evaluate, open_sft_run, sft_step
from egpo.local.training.interrupts import Interrupts
from egpo.local.training.session import EngineOpening, Session, SessionContext, complete, engine_launch
from egpo.model_sources import display_name, origin_facts
from egpo.runs.ledger import Ledger, OnStep
from egpo.runs.live import LiveView, warnings_printed_by
from egpo.runs.metric_table import LOSS, VALIDATION_LOSS
from egpo.runs.opening import LaunchProvenance, OpenedRun


class SftSession(Session):
    """A supervised run in progress.

    The score of a checkpoint is minus its evaluation loss, or, without an evaluation set, minus the loss of its step.
    """

    def __init__(self, run: SftRun, context: SessionContext, done: int = 0, score: float | None = None) -> None:
        super().__init__(run, context, done, score)
        self.run = run

    @property
    def num_steps(self) -> int:
        return self.run.num_steps

    def begin(self) -> None:
        start = time.perf_counter()
        if self.run.evaluates:
            self.record(evaluate(self.run), start)

    def take_step(self) -> None:
        """Take the next step.

        Then evaluate and save a checkpoint, each if it is due. A signal takes effect after that.
        """
        start = time.perf_counter()
        metrics = sft_step(self.run, self.done)
        self.done += 1
        if self.run.evaluates and self.is_due(self.run.config.validation.every):
            metrics |= evaluate(self.run)
        self.record(metrics, start)
        if self.is_due(self.run.config.checkpoints.every):
            self.save()
        self.context.interrupts.allow_abandoning(True)

    def snapshot(self) -> Snapshot:
        # Which examples come next is a function of the step, so that there is no position to save.
        state = {"micro_tokens": self.run.budget.tokens}
        return Snapshot(self.done, learned_tensors(self.run.policy, self.run.optimizer), state, self.score)

    def score_of(self, metrics: Mapping[str, float]) -> float | None:
        loss = metrics.get(VALIDATION_LOSS if self.run.evaluates else LOSS)
        return None if loss is None else -loss


class SftOpening(EngineOpening[SftRun]):
    """The operations that start or resume a supervised run.

    All conversations are read and tokenised before the run's folder is created.
    """

    def __init__(
        self, config: SftConfig, interrupts: Interrupts, on_step: OnStep | None = None, *, quiet: bool = False
    ) -> None:
        super().__init__(config, interrupts, on_step)
        self._config, self._quiet = config, quiet

    def load(self) -> SftRun:
        return open_quietly(self._config)

    def restore_snapshot(self, run: SftRun, saved: Snapshot, model_folder: Path) -> None:
        restore_learned(run.policy, run.optimizer, saved.tensors, model_folder)
        run.budget.tokens = saved.state["micro_tokens"]

    def describe(self, run: SftRun, step: int) -> LaunchProvenance:
        data = self._config.data
        paths = {"train": data.path} | ({"evaluation": data.eval_path} if data.eval_path else {})
        files = {name: Path(path) for name, path in paths.items()}
        digests = {name: data_digest(path) for name, path in files.items()}
        digests |= origin_facts(model_folder(self._config.model.path))
        return LaunchProvenance(engine_launch(run.policy.device, step), digests, files, self._benchmark_cases())

    def _benchmark_cases(self) -> Cases:
        rows = (record.value for record in read_records(Path(self._config.data.path)))
        return joined_cases(cases_in_rows(rows), read_cases(model_folder(self._config.model.path)))

    @contextmanager
    def session(self, opened: OpenedRun[SftRun]) -> Iterator[SftSession]:
        """Open the live view and yield the session. The view needs the number of steps, known once the data is read."""
        run, config = opened.loaded, self._config
        examples = f"{len(run.data.train):,} examples of {config.data.path}"
        title = f"{config.name}: sft of {display_name(config.model.path)} on {examples}"
        view = LiveView(run.num_steps, title, quiet=self._quiet)
        with view, nullcontext() if self._quiet else warnings_printed_by(view.say):
            for reason, count in run.data.dropped.most_common():
                view.say(f"left out {count:,} of {run.data.num_rows:,} rows or answers: {REASONS[reason]}")
            ledger = Ledger(self.folder, view, opened.trackers)
            context = SessionContext(
                self.folder, self.checkpoints, view, ledger, self.interrupts, self.on_step, self._benchmark_cases()
            )
            yield SftSession(run, context, opened.start, self.saved.score if self.saved else None)


def open_quietly(config: SftConfig) -> SftRun:
    """Load a run without progress bars, and print egpo's warnings to stderr: the live view is not open yet."""
    with without_progress_bars(), warnings_printed_by(partial(print, file=sys.stderr)):
        return open_sft_run(config)


def sft(
    config: SftConfig,
    *,
    resume: bool = False,
    resume_from: int | None = None,
    on_step: OnStep | None = None,
    quiet: bool = False,
) -> Path:
    """Train on the conversations for `config.epochs` epochs. Return the folder of the trained model.

    `resume` continues from the newest checkpoint, or from the beginning if there is none. `resume_from` continues
    from the checkpoint of that step, and removes the results of later steps. A signal raises RunInterruptedError, after
    everything is saved.
    """
    with Interrupts() as interrupts:
        opening = SftOpening(config, interrupts, on_step, quiet=quiet)
        return complete(opening, resume=resume, resume_from=resume_from)
