"""What an update did, under verl's names."""

import math
from dataclasses import dataclass

from egpo.advantages.signals import Metrics
from egpo.local.updates.gradients import LossSums


@dataclass(frozen=True)
class OptimizerStep:
    """One mini-batch. `num_tokens` counts all its response tokens, `sums` only those of rows that needed a pass."""

    sums: LossSums
    num_tokens: int
    grad_norm: float

    @property
    def applied(self) -> bool:
        """A gradient that is not finite changes nothing."""
        return math.isfinite(self.grad_norm)


@dataclass(frozen=True)
class UpdateStats:
    """`has_kl`: KL was a term of the loss."""

    lr: float
    steps: tuple[OptimizerStep, ...]
    has_kl: bool

    @property
    def num_skipped(self) -> int:
        return sum(not step.applied for step in self.steps)

    def metrics(self) -> Metrics:
        """Means over the optimizer steps that were applied, or over their tokens. What has no data is left out."""
        metrics = {"actor/lr": self.lr, "actor/skipped_updates": float(self.num_skipped)}
        applied = [step for step in self.steps if step.applied]
        if not applied:
            return metrics
        sums = sum((step.sums for step in applied), start=LossSums())
        num_tokens = max(1, sum(step.num_tokens for step in applied))
        metrics |= {
            "actor/pg_loss": float(sums.pg_loss) / len(applied),
            "actor/grad_norm": sum(step.grad_norm for step in applied) / len(applied),
            # Advantage 0 is never clipped, so rows without a pass count here.
            "actor/pg_clipfrac": float(sums.clipped) / num_tokens,
            "actor/pg_clipfrac_lower": float(sums.capped) / num_tokens,
        }
        if sums.num_tokens:
            metrics["actor/ppo_kl"] = float(sums.minus_log_ratio) / float(sums.num_tokens)
        if sums.num_tokens and self.has_kl:
            metrics["actor/kl"] = float(sums.kl) / float(sums.num_tokens)
        return metrics
