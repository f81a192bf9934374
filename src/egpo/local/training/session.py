"""A run in this process, RL or supervised: how it is opened, its steps, its checkpoints, its end.

`complete` opens a run by its `EngineOpening`, takes steps until the last, and returns the folder of the model. The
subclasses of `EngineOpening` and `Session` in `rl_session.py` and `sft/session.py` hold what differs between the kinds.
"""

import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from egpo.advantages.signals import Metrics
from egpo.benchmark_cases import Cases, write_cases
from egpo.config import Config, SftConfig, config_to_yaml
from egpo.errors import EgpoError, InputError
from egpo.local.checkpoints.background import BackgroundWriter
from egpo.local.checkpoints.checkpoint import Checkpoints, SaveError, Snapshot
from egpo.local.checkpoints.resume import (
    config_identity,
    export_policy,
    exported_weights,
    random_states,
    restore_random_states,
)
from egpo.local.models.policy import Policy
from egpo.local.run import Stages
from egpo.local.training.interrupts import Interrupts, StepAbandoned, interrupted
from egpo.native.library import describe_kernels
from egpo.runs.folder import RunFolder
from egpo.runs.ledger import Ledger, OnStep, StepReport
from egpo.runs.live import LiveView
from egpo.runs.metric_table import STEP_S, TOKENS_PER_S
from egpo.runs.opening import OpenedRun, RunOpening, opened
from egpo.runs.provenance import Launch, describe_launch
from egpo.user_code import raised_at


def run_folder(config: Config | SftConfig) -> RunFolder:
    return RunFolder(Path(config.runs) / config.name)


def run_checkpoints(config: Config | SftConfig) -> Checkpoints:
    """Return the checkpoints of the run. Their messages show a command with the path of the run's `config.yaml`."""
    folder, verb = run_folder(config), "train" if isinstance(config, Config) else "sft"
    return Checkpoints(
        folder.checkpoints,
        identity=config_identity(config),
        command=f"egpo {verb} {shlex.quote(str(folder.config))}",
        keep_last=config.checkpoints.keep_last,
        keep_best=config.checkpoints.keep_best,
    )


class EngineRun(Protocol):
    """The attributes that RL runs and supervised runs have in common."""

    @property
    def policy(self) -> Policy: ...
    @property
    def stages(self) -> Stages: ...


@dataclass(frozen=True, eq=False)
class SessionContext:
    """The folder that a run writes to, the view that shows it, and the signals and the callback that may end it."""

    folder: RunFolder
    checkpoints: Checkpoints
    view: LiveView
    ledger: Ledger
    interrupts: Interrupts
    on_step: OnStep | None = None
    benchmark_cases: Cases = field(default_factory=dict)
    """Cases of public benchmarks that the model is trained on. They are written into its folder."""


class Session(ABC):
    """A run in progress.

    `done`: number of steps taken, of which earlier processes took `begun_at`. `saved`: the step of the newest
    checkpoint, 0 if there is none. `score` ranks the checkpoints for `keep_best`: higher is better.

    `is_consistent`: the state in memory is that after `done` steps, and their metrics are written. Only a consistent
    state can be saved, and only while the state is consistent can a step be abandoned.
    """

    def __init__(self, run: EngineRun, context: SessionContext, done: int = 0, score: float | None = None) -> None:
        self._run, self.context = run, context
        self.done = self.saved = self.begun_at = done
        self.score, self.is_consistent = score, True
        self.reported: StepReport | None = None
        """The newest step whose metrics were written in this process."""
        self._writer, self._has_said_why = BackgroundWriter(context.checkpoints), False
        run.stages.on_enter = self._enter

    @property
    @abstractmethod
    def num_steps(self) -> int:
        """Number of steps of the whole run."""

    @abstractmethod
    def begin(self) -> None:
        """Validate before the first step if the config asks for it, and record the result as step 0."""

    @abstractmethod
    def take_step(self) -> None:
        """Take the next step. Then validate, write rollouts and save a checkpoint, each if it is due."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """Return the state after the last step taken, for a checkpoint."""

    @abstractmethod
    def score_of(self, metrics: Mapping[str, float]) -> float | None:
        """Return the checkpoint score from these metrics; None if they have none, which keeps the previous score."""

    def _enter(self, stage: str, changes_state: bool) -> None:
        self.context.view.stage(stage)
        self.is_consistent = self.is_consistent and not changes_state
        self.context.interrupts.allow_abandoning(self.is_consistent)

    def is_due(self, every: int) -> bool:
        """Return whether an action with the period `every` is due now.

        It is due after every `every` steps (0: never) and after the last step.
        """
        return self.done == self.num_steps or bool(every and self.done % every == 0)

    def record(self, metrics: Metrics, start: float) -> None:
        """Write the metrics and timings of a step that began at `start` (`time.perf_counter`)."""
        self.context.folder.require_there()
        total = time.perf_counter() - start
        stages = {f"timing_s/{name}": seconds for name, seconds in self._run.stages.take().items()}
        throughput = {TOKENS_PER_S: metrics["perf/total_num_tokens"] / total} if self.done else {}
        timings = {**stages, STEP_S: total, **throughput}
        self.context.ledger.record(self.done, metrics, timings)
        self.reported = StepReport(self.done, self.num_steps, dict(metrics), timings)
        measured = self.score_of(metrics)
        self.score = self.score if measured is None else measured
        self.is_consistent = True
        self._take_over_write()

    def save(self) -> None:
        """Begin to write a checkpoint in the background; at the end of the run, write it before returning.

        If that fails, warn and continue, unless the run is ending: then raise SaveError.
        """
        self._save(is_ending=self.done == self.num_steps or self.context.interrupts.signum is not None)

    def end(self, *, is_failing: bool) -> None:
        """Wait for the checkpoint that is being written, and save the state if it is consistent.

        Raise SaveError if the state cannot be written. `is_failing`: an error ends the run; then only warn, because
        that error must be the one that is shown.
        """
        self.context.interrupts.allow_abandoning(False)
        try:
            self._take_over_write(wait=True, continues=False)
        finally:  # the newest state is written even if the checkpoint in the background failed
            if self.is_consistent:
                try:
                    self._save(is_ending=True)
                except SaveError as error:
                    if not is_failing or self.context.interrupts.signum is not None:
                        raise
                    self.context.ledger.record_failed_save(error, self.done, self.done, self.saved, continues=False)

    def _save(self, *, is_ending: bool) -> None:
        self.context.view.stage("save")
        self._take_over_write(wait=True)  # one checkpoint is written at a time
        if self.done == self.saved:
            return
        self.context.folder.require_there()
        self.context.ledger.sync()
        if is_ending or not self._starts_writing():
            self._write(is_ending)

    def _starts_writing(self) -> bool:
        """Copy the state and begin to write it in the background. Return False if that is not possible."""
        snapshot, weights = self.snapshot(), exported_weights(self._run.policy)
        why_not = self._writer.why_not(snapshot, weights)
        if why_not and not self._has_said_why:
            self.context.view.say(f"training waits while a checkpoint is written ({why_not})")
            self._has_said_why = True
        return not why_not and self._writer.start(snapshot, weights, self._export)

    def _write(self, is_ending: bool) -> None:
        try:
            self.context.checkpoints.save(self.snapshot(), partial(self._export, None))
        except SaveError as error:
            if is_ending:
                raise
            self.context.ledger.record_failed_save(error, self.done, self.done, self.saved)
        else:
            self.saved = self.done

    def _take_over_write(self, *, wait: bool = False, continues: bool = True) -> None:
        """Record the outcome of the checkpoint in the background, if it is finished. With `wait`, wait for it.

        `continues`: whether training continues.
        """
        write = self._writer.finished(wait=wait)
        if write is None:
            return
        if write.error is None:
            self.saved = write.step
        elif isinstance(write.error, SaveError):
            self.context.ledger.record_failed_save(write.error, write.step, self.done, self.saved, continues=continues)
        else:
            raise write.error

    def _export(self, weights: Mapping[str, Tensor] | None, folder: Path) -> None:
        export_policy(self._run.policy, folder, weights)
        write_cases(folder, self.context.benchmark_cases)

    @property
    def model_folder(self) -> Path:
        """The folder of the model in the newest checkpoint."""
        return self.context.checkpoints.model_folder(self.saved)


AnyRun = TypeVar("AnyRun", bound=EngineRun)


class EngineOpening(RunOpening[AnyRun]):
    """The operations that start or resume a run of the embedded engine.

    The run continues from the checkpoint `saved`; if it is None, from the beginning.
    """

    checkpoints: Checkpoints

    def __init__(self, config: Config | SftConfig, interrupts: Interrupts, on_step: OnStep | None = None) -> None:
        super().__init__(run_folder(config), run_checkpoints(config), config, config_to_yaml(config))
        self.interrupts, self.on_step = interrupts, on_step
        self.saved: Snapshot | None = None

    def read_checkpoint(self, step: int) -> None:
        self.saved = self.checkpoints.read(step)

    def restore(self, loaded: AnyRun, step: int) -> None:
        if self.saved is not None:
            self.restore_snapshot(loaded, self.saved, self.checkpoints.model_folder(step))

    @abstractmethod
    def restore_snapshot(self, run: AnyRun, saved: Snapshot, model_folder: Path) -> None:
        """Put the state of a checkpoint into a run that was just loaded."""

    @abstractmethod
    def session(self, opened: OpenedRun[AnyRun]) -> AbstractContextManager[Session]:
        """Return the session that trains the opened run."""


def engine_launch(device: torch.device, after_step: int, sandbox: str | None = None) -> Launch:
    """Describe this process for `provenance.json`: machine, versions, threads, and the kernels in use."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    launch = describe_launch(after_step=after_step, threads=torch.get_num_threads(), gpu=gpu, sandbox=sandbox)
    if device.type == "cpu":  # with or without compiled kernels, results differ in the last bits
        launch = replace(launch, versions={**launch.versions, "kernels": describe_kernels()})
    return launch


def complete(opening: EngineOpening[AnyRun], *, resume: bool, resume_from: int | None) -> Path:
    """Open the run and train it to its last step. Return the folder of the trained model.

    A signal raises RunInterruptedError, after everything is saved.
    """
    interrupts = opening.interrupts
    try:
        interrupts.allow_abandoning(True)
        with opened(opening, resume=resume, resume_from=resume_from) as run, opening.session(run) as session:
            return _take_steps(session)
    except StepAbandoned:
        raise interrupted(interrupts.signum or 0, opening.folder, opening.checkpoints) from None


def _take_steps(session: Session) -> Path:
    """Train to the last step, or until the user's callback stops the run. Return the folder of the model.

    If an error or a signal ends the run early, the steps taken are saved, unless an update was interrupted halfway or
    the metrics of a step could not be written.
    """
    is_stopped = False
    try:
        _require_screen(session)
        if session.done == 0:
            session.begin()
            is_stopped = _call_on_step(session)
        while session.done < session.num_steps and not is_stopped:
            session.take_step()
            _require_screen(session)
            is_stopped = _call_on_step(session)
    except BaseException:
        session.end(is_failing=True)
        raise
    session.end(is_failing=False)
    session.context.view.say(_ending(session))
    _require_screen(session)
    return session.model_folder


def _ending(session: Session) -> str:
    if session.done < session.num_steps:
        return f"stopped by on_step after step {session.done} of {session.num_steps}"
    done = "are done" if session.done > session.begun_at else "were done before, and nothing is left to do"
    return f"all {session.num_steps} steps {done}: {session.model_folder}"


def _call_on_step(session: Session) -> bool:
    """Call the user's callback with the newest step. Return whether it asks to stop the run."""
    on_step, reported = session.context.on_step, session.reported
    if on_step is None or reported is None:
        return False
    random = random_states()
    try:
        return _asks_to_stop(on_step(reported))
    except EgpoError:
        raise
    except Exception as error:  # boundary: a user's callback may raise anything
        place = raised_at(error, on_step)
        what = f"it raised {type(error).__name__}: {error} ({place}) after step {session.done}"
        raise EgpoError(what, where="on_step", fix="correct it, then continue with resume=True") from error
    finally:
        restore_random_states(random)  # a task may draw from the global generators in the next step


def _asks_to_stop(answer: object) -> bool:
    """Return the answer of a callback. None is no; a comparison of numpy or torch numbers is not Python's own bool."""
    if str(getattr(answer, "dtype", "")) in ("bool", "torch.bool"):
        answer = answer.item()  # type: ignore[attr-defined]
    if answer is None or isinstance(answer, bool):
        return answer is True
    what = f"it returned {type(answer).__name__}"
    raise InputError(what, where="on_step", fix="return True to stop the run, and nothing otherwise")


def _require_screen(session: Session) -> None:
    """Raise EgpoError if standard output can no longer be written (a closed pipe): the run is then saved and ends."""
    if (failure := session.context.view.failure) is not None:
        done = f"stopped after step {session.done} of {session.num_steps}"
        fix = f"continue with: {session.context.checkpoints.command} --resume"
        raise EgpoError(f"standard output cannot be written ({failure}): {done}", fix=fix)
