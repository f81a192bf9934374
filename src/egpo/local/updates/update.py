"""What an update did, under verl's names.

The policy update: epochs over a batch of rollouts, an optimizer step per mini-batch. B rows, T tokens.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from egpo.advantages.signals import Metrics
from egpo.config import Config
from egpo.config.sections.training import Update
from egpo.local.draws import Draws
from egpo.local.models.policy import Policy
from egpo.local.rollouts import Rollouts
from egpo.local.threads import num_sides, require_wanted, side_by_side
from egpo.local.updates.budget import TokenBudget, within_memory
from egpo.local.updates.gradients import (
    LossSums,
    MicroBatch,
    OwnGradients,
    RowTokens,
    Targets,
    loss_of,
    micro_batches,
    row_shares,
)
from egpo.local.updates.losses import token_weights
from egpo.local.updates.optimizer import Optimizer, learning_rate


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


@dataclass(frozen=True, eq=False)
class UpdateSettings:
    """What an update needs of a config. `horizon` is the longest response; `total_steps` ends the schedule."""

    update: Update
    temperature: float
    horizon: int
    seed: int
    total_steps: int

    @classmethod
    def of(cls, config: Config) -> "UpdateSettings":
        return cls(
            update=config.update,
            temperature=config.rollout.temperature,
            horizon=config.rollout.max_response_tokens,
            seed=config.seed,
            total_steps=config.steps,
        )


def update(
    policy: Policy,
    optimizer: Optimizer,
    rollouts: Rollouts,
    advantage_B: Tensor,
    settings: UpdateSettings,
    budget: TokenBudget,
    step: int,
    reference_BT: Tensor | None = None,
) -> UpdateStats:
    """Step `step` (from 0). `reference_BT`: the reference's log-probabilities, where KL is a term of the loss.
    `budget` is the run's: it keeps the number of tokens that fitted into memory.

    Old log-probabilities are those recorded while sampling, so the first optimizer step is on-policy. Micro-batches
    change the result by rounding alone. Without rows nothing is updated.
    """
    lr = learning_rate(settings.update, step, settings.total_steps)
    tokens = RowTokens.of(rollouts)
    steps = []
    for rows in mini_batches(rollouts.problem_B, settings, step):
        targets = _targets(rollouts, advantage_B, rows, settings, reference_BT)
        sums = _accumulate(policy, optimizer, tokens, rows, targets, settings, budget).as_numbers()
        steps.append(OptimizerStep(sums, int(rollouts.length_B[rows].sum()), _apply(optimizer, sums, lr)))
    return UpdateStats(lr, tuple(steps), has_kl=reference_BT is not None)


def mini_batches(problem_B: Tensor, settings: UpdateSettings, step: int) -> Iterator[list[int]]:
    """Rows of `mini_batch` problems at a time, in every epoch in another order: a function of seed, step and epoch."""
    problems = sorted(set(problem_B.tolist()))
    size = settings.update.mini_batch or max(1, len(problems))
    for epoch in range(settings.update.epochs):
        order = Draws(settings.seed, step, "update").permutation(len(problems), f"epoch {epoch}")
        for start in range(0, len(order), size):
            chosen = torch.tensor([problems[place] for place in order[start : start + size]])
            yield torch.isin(problem_B, chosen).nonzero()[:, 0].tolist()


def _targets(
    rollouts: Rollouts, advantage_B: Tensor, rows: Sequence[int], settings: UpdateSettings, reference_BT: Tensor | None
) -> Targets:
    """Weights are those of the mini-batch: of all its rows, whether they carry a gradient or not."""
    device = rollouts.mask_BT.device
    weight_B = torch.zeros(len(rollouts), device=device)
    weight_B[rows] = token_weights(rollouts.length_B[rows], settings.update.aggregation, settings.horizon)
    return Targets(
        old_logp_BT=rollouts.logp_BT,
        mask_BT=rollouts.mask_BT,
        advantage_B=advantage_B.to(device, torch.float32),
        weight_B=weight_B,
        reference_BT=reference_BT,
    )


def _accumulate(
    policy: Policy,
    optimizer: Optimizer,
    tokens: RowTokens,
    rows: Sequence[int],
    targets: Targets,
    settings: UpdateSettings,
    budget: TokenBudget,
) -> LossSums:
    """The mini-batch's gradient, into the optimizer. A row of advantage 0 adds nothing to it but a KL term."""
    live = (targets.advantage_B != 0).tolist()
    needed = rows if targets.reference_BT is not None else [row for row in rows if live[row]]
    shares = row_shares(needed, tokens, num_sides(policy))
    if len(shares) < 2:
        return _over_parts(policy, needed, tokens, targets, settings, budget, _backward, optimizer.forget_gradients)

    def work(share: list[int]) -> tuple[OwnGradients, LossSums]:
        own = OwnGradients(policy.model.parameters())
        return own, _over_parts(policy, share, tokens, targets, settings, budget, own.add, own.forget)

    results = side_by_side(work, shares)
    for own, _ in results:
        own.hand_over()
    return sum((sums for _, sums in results), start=LossSums())


def _over_parts(
    policy: Policy,
    rows: Sequence[int],
    tokens: RowTokens,
    targets: Targets,
    settings: UpdateSettings,
    budget: TokenBudget,
    backward: Callable[[Tensor], None],
    forget: Callable[[], None],
) -> LossSums:
    """Micro-batch by micro-batch: `backward` sums their gradients, `forget` drops them where memory ran out."""

    def work(part: MicroBatch) -> LossSums:
        require_wanted()
        loss, sums = loss_of(policy, part, targets, settings.update, settings.temperature)
        backward(loss)
        return sums

    cut = partial(micro_batches, rows, tokens)
    return sum(within_memory(budget, cut, work, forget), start=LossSums())


def _backward(loss: Tensor) -> None:
    """Into the weights' own gradients, past the hooks of those that have masters."""
    loss.backward()  # type: ignore[no-untyped-call]


def _apply(optimizer: Optimizer, sums: LossSums, lr: float) -> float:
    """The gradient's norm, NaN where the loss is no number: a clamp has no gradient there, so the norm alone might look
    well."""
    if math.isfinite(sums.pg_loss + sums.kl):
        return optimizer.step(lr)
    optimizer.forget_gradients()
    return math.nan
