"""One training step, on one screen. B rows, T tokens."""

from dataclasses import dataclass

from torch import Tensor

from egpo.advantages.signals import Metrics
from egpo.local.collect import Batch, collect
from egpo.local.measure import Estimate, Measures, estimate, measure
from egpo.local.rollouts import Rollouts
from egpo.local.run import Run
from egpo.local.summarise import summarise
from egpo.local.updates.reference import reference_logp
from egpo.local.updates.update import update


@dataclass(frozen=True, eq=False)
class StepOutcome:
    """What a step leaves: its metrics, and all that a dump of its rollouts shows."""

    metrics: Metrics
    batch: Batch
    measures: Measures
    estimate: Estimate


def step(run: Run, number: int) -> StepOutcome:
    """One on-policy step: P problems in, one update out. `number` counts from 0."""
    batch = collect(run, number)  # P * G responses, with logp and entropy per token; a reward and a reason for each
    with run.stages.enter("measure"):
        measures = measure(run.policy, batch.rollouts, run.config.segments.tags)  # entropy per segment
        estimated = estimate(batch, measures, run.config.algorithm)  # grpo, egpo, egpo_calibrated
    rollouts = batch.rollouts.select(estimated.rows)
    reference_BT = _reference(run, rollouts)
    with run.stages.enter("update"):
        advantage_B = estimated.advantage_B[estimated.rows]
        stats = update(run.policy, run.optimizer, rollouts, advantage_B, run.settings, number, reference_BT)
    return StepOutcome(summarise(run, batch, measures, estimated, stats), batch, measures, estimated)


def _reference(run: Run, rollouts: Rollouts) -> Tensor | None:
    """The reference's log-probabilities, where KL is a term of the loss."""
    if run.reference is None or not run.settings.kl_in_loss:
        return None
    with run.stages.enter("reference"):
        return reference_logp(run.reference, rollouts, run.config.rollout.temperature, run.settings.budget)
