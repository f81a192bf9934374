"""One training step: sample and judge, measure, estimate advantages, update, summarise.

Tensor suffixes: P problems, G samples per problem, B = P * G rows, T tokens of the longest response.
"""

from dataclasses import dataclass

from torch import Tensor

from egpo.advantages.signals import Metrics
from egpo.local.collect import Batch, collect
from egpo.local.measure import Estimate, Measures, estimate, measure
from egpo.local.rollouts import Rollouts
from egpo.local.run import Run
from egpo.local.summarise import measured, summarise
from egpo.local.updates.reference import reference_logp
from egpo.local.updates.update import update


@dataclass(frozen=True, eq=False)
class StepOutcome:
    """The result of a step: its metrics, and the data from which its rollouts are written to disk."""

    metrics: Metrics
    batch: Batch
    measures: Measures
    estimate: Estimate


def step(run: Run, number: int) -> StepOutcome:
    """Take one training step: sample responses to P problems, and update the policy. `number` counts from 0."""
    batch = collect(run, number)  # B responses with logp and entropy per token, each with its reward
    with run.stages.enter("measure"):
        measures = measure(run.policy, batch.rollouts, run.config.segments.tags)  # entropy per segment
        estimated = estimate(batch, measures, run.config.algorithm)  # one advantage per response or per token
    before = measured(batch, measures, estimated)
    control = run.controlled(before)  # settings of `update` that a controller sets for this step
    selected = batch.rollouts.select(estimated.rows)
    rollouts, row_B = selected.by_turn()  # the same rows, or one row per turn
    reference_BT = _reference(run, rollouts)
    with run.stages.enter("update", changes_state=True):
        advantage = estimated.trained(selected, row_B)
        settings = run.settings.under(control)
        stats = update(run.policy, run.optimizer, rollouts, advantage, settings, run.budget, number, reference_BT)
        run.control_state = control.state
    metrics = summarise(run, batch, {**before, **control.metrics}, stats)
    return StepOutcome(metrics, batch, measures, estimated)


def _reference(run: Run, rollouts: Rollouts) -> Tensor | None:
    """Return the reference policy's log-probabilities if KL is a term of the loss, else None."""
    if run.loss_reference is None:
        return None
    with run.stages.enter("reference"):
        return reference_logp(run.loss_reference, rollouts, run.config.rollout.temperature, run.budget)
