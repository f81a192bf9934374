"""SIGINT, SIGTERM and what terminals and schedulers send: the first ends the run in good order, a second one at once.

Until the update begins a step has changed nothing, so it is abandoned where it stands and taken again on resume. An
update under way is finished: half of one is no state to save.

Which processes worked on a run, and on which data.

A run while it is trained, of either kind: its steps, and what they leave behind.
"""

import os
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol

import torch

from egpo.advantages.signals import Metrics
from egpo.errors import NOTICES, EgpoError, RunInterruptedError, stop_signals
from egpo.local.checkpoints.checkpoint import Checkpoints, SaveError, Snapshot
from egpo.local.checkpoints.resume import export_policy
from egpo.local.models.policy import Policy
from egpo.local.run import Stages
from egpo.native.library import describe_kernels
from egpo.runs.folder import RunFolder
from egpo.runs.ledger import Ledger
from egpo.runs.live import LiveView
from egpo.runs.metric_table import STEP_S, TOKENS_PER_S
from egpo.runs.provenance import Provenance, describe_launch, record_resumption, write_provenance

SHOW_CURSOR = "\x1b[?25h"


class StepAbandoned(KeyboardInterrupt):
    """Raised out of a step that has changed nothing yet. No `except Exception` on the way may swallow it."""


class Interrupts:
    """Listens while its `with` block lasts. Signals reach the main thread only: in another it never hears one."""

    def __init__(self) -> None:
        self.signum: int | None = None
        """The signal that came; None while there was none."""
        self._abandonable = False
        self._before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            self._before = {signum: signal.signal(signum, self._receive) for signum in stop_signals()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, before in self._before.items():
            # None: set by something other than Python, which cannot be put back.
            signal.signal(signum, signal.SIG_DFL if before is None else before)

    def allow_abandoning(self, allowed: bool) -> None:
        """True: from here on a signal raises StepAbandoned at once, and so does one that came before. False: from
        here on it waits; the caller looks at `signum` when it is done."""
        self._abandonable = allowed
        if allowed and self.signum is not None:
            raise StepAbandoned

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        # The default action ends the process in the middle of anything, a long kernel too.
        for each in self._before:
            signal.signal(each, signal.SIG_IGN if each in NOTICES else signal.SIG_DFL)
        _say("egpo: stopping in good order; once more to leave at once")
        if self._abandonable:
            self._abandonable = False
            raise StepAbandoned


def _say(text: str) -> None:
    """Straight to the terminal: a handler may run in the middle of a print. Leaving at once would not bring back the
    cursor that the live view hides."""
    cursor = SHOW_CURSOR if sys.stderr.isatty() else ""
    try:
        os.write(2, f"{cursor}{text}\n".encode())
    except OSError:
        return  # a terminal that is gone


def record_launch(
    folder: RunFolder,
    *,
    seed: int,
    after_step: int,
    device: torch.device,
    data: Mapping[str, str],
    files: Mapping[str, Path] | None = None,
    sandbox: str | None = None,
) -> None:
    """This process begins the run, or goes on with it. InputError where the data is not what it began with. `files`
    are those that `data` has digests of."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    launch = describe_launch(after_step=after_step, threads=torch.get_num_threads(), gpu=gpu, sandbox=sandbox)
    if device.type == "cpu":  # compiled or not, the last bits differ
        launch = replace(launch, versions={**launch.versions, "kernels": describe_kernels()})
    if folder.provenance.exists():
        record_resumption(folder.provenance, launch, data, files)
    else:
        write_provenance(folder.provenance, Provenance(seed, data, launch))


@dataclass(frozen=True, eq=False)
class Surroundings:
    """Where a run writes, who watches it, and who may stop it."""

    folder: RunFolder
    checkpoints: Checkpoints
    view: LiveView
    ledger: Ledger
    interrupts: Interrupts


class Trained(Protocol):
    """What every kind of run has."""

    @property
    def policy(self) -> Policy: ...
    @property
    def stages(self) -> Stages: ...


class Session(ABC):
    """`done` steps are taken, the first `begun_at` of them before this process; `saved` is the step of the newest
    checkpoint, 0 where there is none. `score` is what the best checkpoints are chosen by.

    `is_whole`: what is in memory is the state after `done` steps, and their metrics are written. It can be saved.
    """

    def __init__(self, trained: Trained, around: Surroundings, done: int = 0, score: float | None = None) -> None:
        self._trained, self.around = trained, around
        self.done = self.saved = self.begun_at = done
        self.score, self.is_whole = score, True

    @property
    @abstractmethod
    def num_steps(self) -> int:
        """Of the whole run."""

    @abstractmethod
    def begin(self) -> None:
        """Before the first step: line 0 of the metrics, if there is one."""

    @abstractmethod
    def take_step(self) -> None:
        """The next step, with all that is due after it."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The state after the steps done."""

    @abstractmethod
    def score_of(self, metrics: Mapping[str, float]) -> float | None:
        """None where these figures have none: then the last one stands."""

    def save(self) -> None:
        """A checkpoint of the steps done. One that cannot be written costs a warning, unless it holds the result."""
        if self.done == self.saved:
            return
        self.around.folder.require_there()
        self.around.view.stage("save")
        self.around.ledger.sync()
        try:
            self.around.checkpoints.save(self.snapshot(), partial(export_policy, self._trained.policy))
        except SaveError as error:
            if self.done == self.num_steps or self.around.interrupts.signum is not None:
                raise
            self.around.ledger.record_failed_save(error, self.done, self.saved)
        else:
            self.saved = self.done

    @property
    def model_folder(self) -> Path:
        """The newest checkpoint's model."""
        return self.around.checkpoints.model_folder(self.saved)

    def is_due(self, every: int) -> bool:
        """Every so many steps, and after the last; a period of 0 leaves the last."""
        return self.done == self.num_steps or bool(every and self.done % every == 0)

    def record(self, metrics: Metrics, start: float) -> None:
        """The figures of a step that began at `start`, by the performance counter."""
        self.around.folder.require_there()
        total = time.perf_counter() - start
        stages = {f"timing_s/{name}": seconds for name, seconds in self._trained.stages.take().items()}
        throughput = {TOKENS_PER_S: metrics["perf/total_num_tokens"] / total} if self.done else {}
        self.around.ledger.record(self.done, metrics, {**stages, STEP_S: total, **throughput})
        measured = self.score_of(metrics)
        self.score = self.score if measured is None else measured
        self.is_whole = True


def take_steps(session: Session) -> Path:
    """To the last step, and the folder of the model. However it ends, what is done is kept: unless an update was cut in
    two, or its metrics could not be written."""
    try:
        _require_screen(session)
        if session.done == 0:
            session.begin()
        while session.done < session.num_steps:
            session.take_step()
            _require_screen(session)
    finally:
        if session.is_whole:
            session.save()
    done = "are done" if session.done > session.begun_at else "were done before, and nothing is left to do"
    session.around.view.say(f"all {session.num_steps} steps {done}: {session.model_folder}")
    _require_screen(session)
    return session.model_folder


def _require_screen(session: Session) -> None:
    """A run whose output cannot be written ends, as a program in a pipe does, but in good order."""
    if (failure := session.around.view.failure) is not None:
        done = f"stopped after step {session.done} of {session.num_steps}"
        fix = f"go on with: {session.around.checkpoints.command} --resume"
        raise EgpoError(f"standard output cannot be written ({failure}): {done}", fix=fix)


def interrupted(signum: int, folder: RunFolder, checkpoints: Checkpoints) -> RunInterruptedError:
    """The newest checkpoint is that of the last step that was done: it has just been saved."""
    if not folder.config.exists():
        return RunInterruptedError(signum, "stopped before the first step; nothing was written")
    steps = checkpoints.steps()
    done = f"after step {steps[-1]}, which is saved" if steps else "before the first step was done"
    return RunInterruptedError(signum, f"stopped {done}", fix=f"go on with: {checkpoints.command} --resume")
