"""What the live view has seen of a run so far."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from egpo.runs.health import Note
from egpo.runs.readings import REWARD, VALIDATION_LOSS, validation_accuracy

VALIDATED = "validated"
"""Among the names that were `seen`: a validation accuracy, whatever its source is called."""
_BOUND = 1e100  # sums of what is larger overflow


@dataclass
class Progress:
    """`metrics` and `timings` are the last step's; `seen` are the names of all steps."""

    total_steps: int
    title: str
    step: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    rewards: list[float] = field(default_factory=list)
    validation: float | None = None
    validation_step: int = 0
    validation_loss: float | None = None
    left_s: float | None = None
    notes: list[Note] = field(default_factory=list)

    def add(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """A step that is done. Validation is rarer: its last figure stays."""
        self.step, self.metrics, self.timings = step, metrics, timings
        self.seen.update(metrics, timings)
        if REWARD in metrics:
            self.rewards.append(max(-_BOUND, min(_BOUND, metrics[REWARD])))
        if (accuracy := validation_accuracy(metrics)) is not None:
            self.validation, self.validation_step = accuracy, step
            self.seen.add(VALIDATED)
        self.validation_loss = metrics.get(VALIDATION_LOSS, self.validation_loss)
