"""A supervised run while it is trained.

From a recipe to a session that can take its next step: new, or as it was when its checkpoint was written.

`sft`: a supervised run from where it stands to its last step.
"""

import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from egpo.config import SftConfig, config_to_yaml
from egpo.data.manifest import data_digest
from egpo.local.checkpoints.checkpoint import Checkpoints, Snapshot
from egpo.local.checkpoints.resume import config_identity, learned_tensors, restore_learned
from egpo.local.progress_bars import without_progress_bars
from egpo.local.sft.examples import REASONS
from egpo.local.sft.run import SftRun, evaluate, open_sft_run, sft_step
from egpo.local.training.session import (
    Interrupts,
    Session,
    StepAbandoned,
    Surroundings,
    interrupted,
    record_launch,
    take_steps,
)
from egpo.runs.folder import RunFolder
from egpo.runs.ledger import NOTHING_YET, Ledger, require_rewindable, rewind
from egpo.runs.live import LiveView, warnings_printed_by
from egpo.runs.metric_table import LOSS, VALIDATION_LOSS
from egpo.runs.trackers import open_trackers


class SftSession(Session):
    """The best checkpoints are those of the lowest evaluation loss; where there is none, of the lowest step's loss."""

    def __init__(self, run: SftRun, around: Surroundings, done: int = 0, score: float | None = None) -> None:
        super().__init__(run, around, done, score)
        self.run = run
        run.stages.on_enter = around.view.stage

    @property
    def num_steps(self) -> int:
        return self.run.num_steps

    def begin(self) -> None:
        start = time.perf_counter()
        if self.run.evaluates:
            self.record(evaluate(self.run), start)

    def take_step(self) -> None:
        """A signal waits for its end: all of it is an update, and half of one is no state to save."""
        start = time.perf_counter()
        self.around.interrupts.allow_abandoning(False)
        self.is_whole = False
        metrics = sft_step(self.run, self.done)
        self.done += 1
        if self.run.evaluates and self.is_due(self.run.config.validation.every):
            metrics |= evaluate(self.run)
        self.record(metrics, start)
        if self.is_due(self.run.config.checkpoints.every):
            self.save()
        self.around.interrupts.allow_abandoning(True)

    def snapshot(self) -> Snapshot:
        """Which examples come next follows from the step: there is no stream whose place must be kept."""
        state = {"micro_tokens": self.run.budget.tokens}
        return Snapshot(self.done, learned_tensors(self.run.policy, self.run.optimizer), state, self.score)

    def score_of(self, metrics: Mapping[str, float]) -> float | None:
        loss = metrics.get(VALIDATION_LOSS if self.run.evaluates else LOSS)
        return None if loss is None else -loss


def restore(run: SftRun, saved: Snapshot, model_folder: Path) -> None:
    """A run that was just opened goes on where the snapshot was taken."""
    restore_learned(run.policy, run.optimizer, saved.tensors, model_folder)
    run.budget.tokens = saved.state["micro_tokens"]


def sft_folder(config: SftConfig) -> RunFolder:
    return RunFolder(Path(config.runs) / config.name)


def sft_checkpoints(config: SftConfig) -> Checkpoints:
    """The command that starts the run again names the recipe in its folder."""
    folder = sft_folder(config)
    return Checkpoints(
        folder.checkpoints,
        identity=config_identity(config),
        command=f"egpo sft {shlex.quote(str(folder.config))}",
        keep_last=config.checkpoints.keep_last,
        keep_best=config.checkpoints.keep_best,
    )


def open_quietly(config: SftConfig) -> SftRun:
    """Without progress bars, and with our warnings as plain lines: there is no live view yet to show them."""
    with without_progress_bars(), warnings_printed_by(partial(print, file=sys.stderr)):
        return open_sft_run(config)


@contextmanager
def new_session(config: SftConfig, interrupts: Interrupts) -> Iterator[SftSession]:
    """Everything is loaded and read before the first file is written: a recipe that fails leaves no folder."""
    sft_folder(config).require_free()
    run = open_quietly(config)
    with RunFolder.create(sft_folder(config).path, config_to_yaml(config)) as folder:
        _record_launch(run, folder, 0)
        with _surroundings(run, folder, interrupts) as around:
            yield SftSession(run, around)


@contextmanager
def resumed_session(config: SftConfig, step: int | None, interrupts: Interrupts) -> Iterator[SftSession]:
    """After the checkpoint of `step`, or the newest, or from the beginning where there is none. What the run wrote
    about later steps is forgotten, but not before everything is loaded."""
    with RunFolder.resume(sft_folder(config).path, config_to_yaml(config)) as folder:
        checkpoints = sft_checkpoints(config)
        start = checkpoints.choose(step)
        saved = checkpoints.read(start) if start else None
        require_rewindable(folder, start or NOTHING_YET)
        run = open_quietly(config)
        if saved is not None:
            restore(run, saved, checkpoints.model_folder(start))
        _record_launch(run, folder, start)
        # In this order: a checkpoint must never be newer than the metrics.
        checkpoints.forget_after(start)
        rewind(folder, start or NOTHING_YET)
        with _surroundings(run, folder, interrupts) as around:
            yield SftSession(run, around, start, saved.score if saved else None)


@contextmanager
def _surroundings(run: SftRun, folder: RunFolder, interrupts: Interrupts) -> Iterator[Surroundings]:
    """The view comes last: how many steps there are is known once the data is read."""
    config, data = run.config, run.data
    title = f"{config.name}: sft of {config.model.path} on {len(data.train):,} examples of {config.data.path}"
    trackers = open_trackers(config.watch.trackers, config.name, config.model_dump(mode="json"), folder)
    with closing(trackers), LiveView(run.num_steps, title) as view, warnings_printed_by(view.say):
        for reason, count in data.dropped.most_common():
            view.say(f"left out {count:,} of {data.num_rows:,} rows or answers: {REASONS[reason]}")
        yield Surroundings(folder, sft_checkpoints(config), view, Ledger(folder, view, trackers), interrupts)


def _record_launch(run: SftRun, folder: RunFolder, step: int) -> None:
    data = run.config.data
    paths = {"train": data.path} | ({"evaluation": data.eval_path} if data.eval_path else {})
    files = {name: Path(path) for name, path in paths.items()}
    digests = {name: data_digest(path) for name, path in files.items()}
    record_launch(folder, seed=run.config.seed, after_step=step, device=run.policy.device, data=digests, files=files)


def sft(config: SftConfig, *, resume: bool = False, resume_from: int | None = None) -> Path:
    """Every epoch over the conversations. Returns the folder of the trained model.

    `resume` goes on from the newest checkpoint, or from the beginning where there is none; `resume_from` from that of
    a step, and forgets what came later. Ended by a signal it raises RunInterruptedError, with everything saved.
    """
    with Interrupts() as interrupts:
        try:
            interrupts.allow_abandoning(True)
            if resume or resume_from is not None:
                opened = resumed_session(config, resume_from, interrupts)
            else:
                opened = new_session(config, interrupts)
            with opened as session:
                return take_steps(session)
        except StepAbandoned:
            raise interrupted(interrupts.signum or 0, sft_folder(config), sft_checkpoints(config)) from None
