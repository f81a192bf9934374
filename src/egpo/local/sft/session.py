"""A supervised run while it is trained."""

import time
from collections.abc import Mapping
from pathlib import Path

from egpo.local.checkpoints.checkpoint import Snapshot
from egpo.local.checkpoints.resume import learned_tensors, restore_learned
from egpo.local.sessions.session import Session, Surroundings
from egpo.local.sft.run import SftRun, evaluate, sft_step
from egpo.runs.readings import LOSS, VALIDATION_LOSS


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
