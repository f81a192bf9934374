"""The policy update: epochs over a batch of rollouts, one optimizer step per mini-batch.

Tensor suffixes: B rows, T tokens.

A mini-batch is cut into micro-batches (`micro_batches`), whose losses (`losses`) are summed into one gradient; on a CPU
each core sums the gradient of its own rows. `UpdateStats` reports the update under verl's metric names.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from egpo.advantages.signals import Metrics
from egpo.config import Config
from egpo.config.sections.training import Update
from egpo.controllers import Control
from egpo.local.draws import Draws
from egpo.local.models.policy import Policy
from egpo.local.rollouts import Rollouts
from egpo.local.threads import num_worker_threads, parallel_map, raise_if_cancelled
from egpo.local.updates.losses import LossSums, Targets, loss_of, token_weights
from egpo.local.updates.micro_batches import (
    MicroBatch,
    RowTokens,
    TokenBudget,
    micro_batches,
    split_rows,
    within_memory,
)
from egpo.local.updates.optimizer import Optimizer, learning_rate
from egpo.local.updates.reference import packed_logp
from egpo.losses import MiniBatchTokens, loss_named
from egpo.runs.metric_table import ENTROPY_WEIGHT, SAMPLER_CLIPPED, SAMPLER_DIFF, SAMPLER_DIFF_MAX


@dataclass(frozen=True, eq=False)
class UpdateSettings:
    """The settings of an update.

    `horizon`: the longest response in tokens. `total_steps`: the length of the learning-rate schedule.
    """

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

    def under(self, control: Control) -> "UpdateSettings":
        """Return the settings of one step, with what a controller sets in it."""
        return replace(self, update=self.update.controlled(control.update)) if control.update else self


@dataclass(frozen=True)
class OptimizerStep:
    """The result of the optimizer step on one mini-batch.

    `num_tokens`: number of all its response tokens. `sums` leaves out rows of advantage 0, unless KL or entropy is a
    term of the loss.
    """

    sums: LossSums
    num_tokens: int
    grad_norm: float

    @property
    def applied(self) -> bool:
        """Whether the weights were changed. They are not if the gradient is not finite."""
        return math.isfinite(self.grad_norm)


@dataclass(frozen=True)
class UpdateStats:
    """The result of an update, from which its metrics are computed. `has_kl`: whether KL was a term of the loss.

    `settings`: those of this update, which a controller may have changed.
    """

    lr: float
    steps: tuple[OptimizerStep, ...]
    has_kl: bool
    settings: Update

    @property
    def num_skipped(self) -> int:
        return sum(not step.applied for step in self.steps)

    def metrics(self) -> Metrics:
        """Return means over the applied optimizer steps, or over their tokens. Metrics without data are absent."""
        metrics = {"actor/lr": self.lr, "actor/skipped_updates": float(self.num_skipped), **self._sampler_metrics()}
        if self.settings.entropy_weight or self.settings.controller != "none":
            metrics[ENTROPY_WEIGHT] = self.settings.entropy_weight
        applied = [step for step in self.steps if step.applied]
        if not applied:
            return metrics
        sums = sum((step.sums for step in applied), start=LossSums())
        num_tokens = max(1, sum(step.num_tokens for step in applied))
        metrics |= {
            "actor/pg_loss": float(sums.pg_loss) / len(applied),
            "actor/grad_norm": sum(step.grad_norm for step in applied) / len(applied),
            # A token of advantage 0 is never clipped, so the tokens of rows that were not computed count too.
            "actor/pg_clipfrac": float(sums.clipped) / num_tokens,
            "actor/pg_clipfrac_lower": float(sums.capped) / num_tokens,
        }
        if sums.num_tokens:
            metrics["actor/ppo_kl"] = float(sums.minus_log_ratio) / float(sums.num_tokens)
        if sums.num_tokens and self.has_kl:
            metrics["actor/kl"] = float(sums.kl) / float(sums.num_tokens)
        if loss_named(self.settings.loss).mark is not None:
            metrics["actor/marked_frac"] = float(sums.marked) / num_tokens
        if sums.num_tokens and self.settings.importance_cap is not None:
            metrics["sampler/weight_mean"] = float(sums.importance) / float(sums.num_tokens)
            metrics["sampler/weight_capped_frac"] = float(sums.importance_capped) / float(sums.num_tokens)
        return metrics

    def _sampler_metrics(self) -> Metrics:
        """Return how far the recorded log-probabilities are from those of the first mini-batch.

        That mini-batch is computed with the weights that sampled it, so every difference is an error of one of the two.
        """
        sums = self.steps[0].sums if self.steps else LossSums()
        if not sums.num_tokens:
            return {}
        num_tokens = float(sums.num_tokens)
        return {
            SAMPLER_DIFF: float(sums.abs_log_ratio) / num_tokens,
            SAMPLER_DIFF_MAX: float(sums.max_log_ratio),
            SAMPLER_CLIPPED: float(sums.clipped) / num_tokens,
        }


def update(
    policy: Policy,
    optimizer: Optimizer,
    rollouts: Rollouts,
    advantage: Tensor,
    settings: UpdateSettings,
    budget: TokenBudget,
    step: int,
    reference_BT: Tensor | None = None,
) -> UpdateStats:
    """Update the policy in training step `step`, counted from 0.

    `advantage` has one value per row, or one per token. `reference_BT` has the reference's log-probabilities if KL is a
    term of the loss. `budget` is shared by all updates of a run, and remembers how many tokens fit into memory. Old
    log-probabilities are those recorded while sampling, so the first optimizer step is on-policy. The size of
    micro-batches changes the result only by rounding. If there are no rows, nothing is updated.

    With `importance_cap`, old log-probabilities are the trainer's own. If the batch takes one optimizer step, they are
    those of the loss itself. Otherwise one more forward pass over the batch computes them before the first step.
    """
    lr = learning_rate(settings.update, step, settings.total_steps)
    tokens = RowTokens.of(rollouts)
    batches = list(mini_batches(rollouts.problem_B, settings, step))
    trainer_BT = None
    if settings.update.importance_cap is not None and len(batches) > 1:
        trainer_BT = packed_logp(policy, rollouts, settings.temperature, budget)
    steps = []
    for rows in batches:
        targets = _targets(rollouts, advantage, rows, settings, reference_BT, step, trainer_BT)
        sums = _accumulate(policy, optimizer, tokens, rows, targets, settings, budget).as_numbers()
        steps.append(OptimizerStep(sums, int(rollouts.length_B[rows].sum()), _apply(optimizer, sums, lr)))
    return UpdateStats(lr, tuple(steps), has_kl=reference_BT is not None, settings=settings.update)


def mini_batches(problem_B: Tensor, settings: UpdateSettings, step: int) -> Iterator[list[int]]:
    """Yield the rows of `mini_batch` problems at a time, in an order that depends only on seed, step and epoch."""
    problems = sorted(set(problem_B.tolist()))
    size = settings.update.mini_batch or max(1, len(problems))
    for epoch in range(settings.update.epochs):
        order = Draws(settings.seed, step, "update").permutation(len(problems), f"epoch {epoch}")
        for start in range(0, len(order), size):
            chosen = torch.tensor([problems[place] for place in order[start : start + size]])
            yield torch.isin(problem_B, chosen).nonzero()[:, 0].tolist()


def _targets(
    rollouts: Rollouts,
    advantage: Tensor,
    rows: Sequence[int],
    settings: UpdateSettings,
    reference_BT: Tensor | None,
    step: int,
    trainer_BT: Tensor | None = None,
) -> Targets:
    """Return the targets of a mini-batch. Token weights count all its rows, including those without a gradient."""
    device = rollouts.mask_BT.device
    weight_B = torch.zeros(len(rollouts), device=device)
    weight_B[rows] = token_weights(rollouts.length_B[rows], settings.update.aggregation, settings.horizon)
    advantage = advantage.to(device, torch.float32)
    return Targets(
        old_logp_BT=rollouts.logp_BT,
        mask_BT=rollouts.mask_BT,
        advantage=advantage,
        weight_B=weight_B,
        reference_BT=reference_BT,
        marked_BT=_marked(rollouts, advantage, rows, settings, step),
        trainer_BT=trainer_BT,
    )


def _marked(
    rollouts: Rollouts, advantage: Tensor, rows: Sequence[int], settings: UpdateSettings, step: int
) -> Tensor | None:
    """Return the tokens that the loss form chooses among all tokens of a mini-batch; None if it chooses none."""
    mark = loss_named(settings.update.loss).mark
    if mark is None:
        return None
    row_R = torch.tensor(rows, device=rollouts.mask_BT.device)
    mask_RT = rollouts.mask_BT[row_R]
    advantage_RT = advantage[row_R] if advantage.ndim == 2 else advantage[row_R].unsqueeze(1).expand_as(mask_RT)
    keys = [rollouts.problems[index].key for index in rollouts.problem_B[list(rows)].tolist()]
    uniform_RT = Draws(settings.seed, step, "loss").uniforms(keys, 1, mask_RT.shape[1]).to(mask_RT.device)
    chosen_K = mark(
        MiniBatchTokens(
            old_logp_K=rollouts.logp_BT[row_R][mask_RT],
            advantage_K=advantage_RT[mask_RT],
            entropy_K=rollouts.entropy_BT[row_R][mask_RT],
            uniform_K=uniform_RT[mask_RT],
        ),
        **settings.update.settings_of_loss,
    )
    marked_BT = torch.zeros_like(rollouts.mask_BT)
    marked_RT = torch.zeros_like(mask_RT)
    marked_RT[mask_RT] = chosen_K.bool()
    marked_BT[row_R] = marked_RT
    return marked_BT


def _accumulate(
    policy: Policy,
    optimizer: Optimizer,
    tokens: RowTokens,
    rows: Sequence[int],
    targets: Targets,
    settings: UpdateSettings,
    budget: TokenBudget,
) -> LossSums:
    """Compute the gradient of a mini-batch, and return the sums of its loss terms.

    The gradient is added to the weights' gradients. A row of advantage 0 adds only its KL and entropy terms, if there
    are any, and those of the loss form for the tokens that it chose.
    """
    live, has_terms = targets.live(), targets.reference_BT is not None or settings.update.entropy_weight != 0
    needed = rows if has_terms else [row for row in rows if live[row]]
    parts = split_rows(needed, tokens, num_worker_threads(policy))
    if len(parts) < 2:
        return _over_micro_batches(
            policy, needed, tokens, targets, settings, budget, _backward, optimizer.discard_gradients
        )

    def work(part: list[int]) -> tuple[CoreGradients, LossSums]:
        own = CoreGradients(policy.model.parameters())
        return own, _over_micro_batches(policy, part, tokens, targets, settings, budget, own.add, own.discard)

    results = parallel_map(work, parts)
    for own, _ in results:
        own.add_to_weights()
    return sum((sums for _, sums in results), start=LossSums())


def _over_micro_batches(
    policy: Policy,
    rows: Sequence[int],
    tokens: RowTokens,
    targets: Targets,
    settings: UpdateSettings,
    budget: TokenBudget,
    backward: Callable[[Tensor], None],
    discard: Callable[[], None],
) -> LossSums:
    """Return the sums of the loss terms over all micro-batches of these rows.

    `backward` is called with each loss to accumulate gradients. If memory runs out, `discard` is called to drop them.
    """

    def work(part: MicroBatch) -> LossSums:
        raise_if_cancelled()
        loss, sums = loss_of(policy, part, targets, settings.update, settings.temperature)
        backward(loss)
        return sums

    cut = partial(micro_batches, rows, tokens)
    return sum(within_memory(budget, cut, work, discard), start=LossSums())


def _backward(loss: Tensor) -> None:
    """Add the gradient of a loss to the weights' own. Hooks move those of 16-bit weights to their float32 masters."""
    loss.backward()  # type: ignore[no-untyped-call]


class CoreGradients:
    """The sum of the gradients of one core's rows, apart from the weights' own gradients, which all cores share."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._weights = [weight for weight in parameters if weight.requires_grad]
        self._sums: list[Tensor | None] = [None] * len(self._weights)

    def add(self, loss: Tensor) -> None:
        """Add the gradient of a loss to the sum."""
        found = torch.autograd.grad(loss, self._weights, allow_unused=True)
        self._sums = [_sum(known, new) for known, new in zip(self._sums, found, strict=True)]

    def discard(self) -> None:
        self._sums = [None] * len(self._weights)

    def add_to_weights(self) -> None:
        """Add the sum to the weights' own gradients.

        Call it in the order of the cores, so that rounding does not depend on which core finishes first.
        """
        for weight, gradient in zip(self._weights, self._sums, strict=True):
            weight.grad = _sum(weight.grad, gradient)


def _sum(known: Tensor | None, new: Tensor | None) -> Tensor | None:
    """Return the sum of two gradients, each of which may be None. If both exist, the first is overwritten."""
    if known is None or new is None:
        return new if known is None else known
    return known.add_(new)


def _apply(optimizer: Optimizer, sums: LossSums, lr: float) -> float:
    """Apply the gradients, and return their norm. If the loss is not finite, discard them and return NaN.

    The norm alone does not show a loss of NaN: a clamp has no gradient if its input is NaN.
    """
    if math.isfinite(sums.pg_loss + sums.kl + sums.entropy):
        return optimizer.step(lr)
    optimizer.discard_gradients()
    return math.nan
