"""The loss of a micro-batch: the loss form of `egpo.losses`, KL and entropy terms, weights of tokens.

Tensor suffixes: B rows, R rows of a micro-batch, T tokens, M response tokens of a micro-batch. The loss is the sum of
weight * loss over tokens. Weights are computed for a whole mini-batch before it is cut into micro-batches, so the cuts
do not change the loss.

To add a KL estimator: a function of the two log-probabilities, and its row in KL_ESTIMATORS.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from egpo.config.sections.training import Update
from egpo.local.models.packs import pack_groups
from egpo.local.models.policy import Policy
from egpo.local.updates.micro_batches import MicroBatch
from egpo.losses import Clip, LossTokens, loss_named
from egpo.losses.tokens import LARGEST_LOG_RATIO
from egpo.token_stats import token_stats


def k1(logp: Tensor, reference_logp: Tensor) -> Tensor:
    """Return logp - ref: unbiased, and often negative. Useless as a loss: its expected gradient is 0."""
    return logp - reference_logp


def k2(logp: Tensor, reference_logp: Tensor) -> Tensor:
    """Return (logp - ref)^2 / 2: biased and never negative; its expected gradient is that of the KL divergence."""
    return (logp - reference_logp).square() / 2


def k3(logp: Tensor, reference_logp: Tensor) -> Tensor:
    """Return exp(ref - logp) - 1 - (ref - logp): unbiased and never negative.

    verl clips the value at 10, so a token has no gradient if the policy is far from the reference. Here only the
    exponent is bounded, at 20.
    """
    log_ratio = (reference_logp - logp).clamp(max=LARGEST_LOG_RATIO)
    return torch.expm1(log_ratio) - log_ratio


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
"""Estimates of the KL divergence at sampled tokens (Schulman 2020, joschu.net/blog/kl-approx.html)."""


def kl_per_response(logp_BT: Tensor, reference_BT: Tensor, mask_BT: Tensor, estimator: str) -> Tensor:
    """Return the estimated KL divergence summed over each response's tokens; 0 for a response without tokens."""
    return (KL_ESTIMATORS[estimator](logp_BT, reference_BT) * mask_BT).sum(1)


def less_kl(reward_B: Tensor, kl_B: Tensor, weight: float) -> Tensor:
    """Return the reward minus `weight` times the KL divergence of the response, for the setting `kl_in: reward`."""
    return reward_B - weight * kl_B.to(reward_B)


Aggregation = Literal["token_mean", "sequence_mean", "fixed_length"]


def token_weights(length_B: Tensor, aggregation: Aggregation, horizon: int) -> Tensor:
    """Return the weight of each token of row b, which has L[b] tokens, among R rows that have tokens (float32):

        token_mean      1 / sum(L)          all tokens equal               verl's token-mean
        sequence_mean   1 / (R * L[b])      all responses equal            verl's seq-mean-token-mean
        fixed_length    1 / (R * horizon)   independent of length          verl's seq-mean-token-sum-norm, at a fixed
                                                                           loss_scale_factor

    A row without tokens has weight 0 and does not count. In verl's means over sequences it counts, and so does padding:
    they divide by the number of rows that a mini-batch has by the configuration.
    """
    length_B = length_B.double()
    num_rows = (length_B > 0).sum().clamp(min=1)
    if aggregation == "token_mean":
        total_B = length_B.sum().expand_as(length_B)
    elif aggregation == "sequence_mean":
        total_B = num_rows * length_B
    else:
        total_B = (num_rows * horizon).expand_as(length_B)
    return torch.where(length_B > 0, 1 / total_B.clamp(min=1), 0.0).float()


@dataclass(frozen=True, eq=False)
class Targets:
    """Old log-probabilities, advantages and token weights for the loss of a mini-batch, on the policy's device.

    `advantage` has one value per row (B) or one per token (B, T). `reference_BT` has the log-probabilities of the
    reference; None unless KL is a term of the loss. `marked_BT`: the tokens that the loss form chose; None if it
    chooses none. `trainer_BT`: the log-probabilities that the trainer computes with the weights that sampled, for
    `update.importance_cap`; None: the loss is computed with those weights, and its own log-probabilities are these.
    """

    old_logp_BT: Tensor
    mask_BT: Tensor
    advantage: Tensor
    weight_B: Tensor
    reference_BT: Tensor | None = None
    marked_BT: Tensor | None = None
    trainer_BT: Tensor | None = None

    def live(self) -> list[bool]:
        """Return which rows have an advantage that is not 0, or a token that the loss form chose."""
        live_B = self.advantage != 0
        live_B = live_B if live_B.ndim == 1 else (live_B & self.mask_BT).any(1)
        return (live_B if self.marked_BT is None else live_B | self.marked_BT.any(1)).tolist()

    def of(self, rows: Sequence[int]) -> "_TokenTargets":
        """Return old log-probabilities, advantages and weights of the response tokens of these rows, row by row."""
        row_R = torch.tensor(rows, device=self.mask_BT.device)
        mask_RT = self.mask_BT[row_R]
        length_R = mask_RT.sum(1)
        advantage = self.advantage[row_R]
        return _TokenTargets(
            old_logp_M=self.old_logp_BT[row_R][mask_RT],
            advantage_M=advantage.repeat_interleave(length_R) if advantage.ndim == 1 else advantage[mask_RT],
            weight_M=self.weight_B[row_R].repeat_interleave(length_R),
            row_M=torch.arange(len(rows), device=row_R.device).repeat_interleave(length_R),
            reference_M=None if self.reference_BT is None else self.reference_BT[row_R][mask_RT],
            marked_M=None if self.marked_BT is None else self.marked_BT[row_R][mask_RT],
            trainer_M=None if self.trainer_BT is None else self.trainer_BT[row_R][mask_RT],
        )


@dataclass(frozen=True, eq=False)
class _TokenTargets:
    old_logp_M: Tensor
    advantage_M: Tensor
    weight_M: Tensor
    row_M: Tensor
    reference_M: Tensor | None
    marked_M: Tensor | None
    trainer_M: Tensor | None


@dataclass(frozen=True)
class LossSums:
    """Sums of loss terms over tokens, from which metrics compute means. Only `pg_loss` is already weighted.

    The fields are 0-d tensors while micro-batches are computed, so that the host does not wait for the device;
    `as_numbers` converts them.
    """

    pg_loss: Tensor | float = 0.0
    kl: Tensor | float = 0.0
    clipped: Tensor | float = 0.0
    capped: Tensor | float = 0.0
    minus_log_ratio: Tensor | float = 0.0
    abs_log_ratio: Tensor | float = 0.0
    num_tokens: Tensor | float = 0.0
    entropy: Tensor | float = 0.0
    """0 unless the entropy is a term of the loss."""
    marked: Tensor | float = 0.0
    """The number of tokens that the loss form chose."""
    importance: Tensor | float = 0.0
    """The sum of the weights of `update.importance_cap`; 0 if it is not set."""
    importance_capped: Tensor | float = 0.0
    max_log_ratio: Tensor | float = 0.0
    """The largest absolute log-ratio of a token; the only field that is a maximum and not a sum."""

    def __add__(self, other: "LossSums") -> "LossSums":
        *mine, my_max = self._values()
        *theirs, their_max = other._values()
        sums = [one + another for one, another in zip(mine, theirs, strict=True)]
        return LossSums(*[*sums, _larger(my_max, their_max)])

    def as_numbers(self) -> "LossSums":
        """Return the same sums as Python numbers."""
        return LossSums(*map(float, self._values()))

    def _values(self) -> Iterator[Tensor | float]:
        return (getattr(self, field.name) for field in fields(self))


def _larger(one: Tensor | float, other: Tensor | float) -> Tensor | float:
    """Return the larger of two values, as a tensor if one of them is: the host must not wait for the device."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.maximum(one, other)
    if isinstance(one, Tensor):
        return one.clamp(min=other)
    return other.clamp(min=one) if isinstance(other, Tensor) else max(one, other)


def loss_of(
    policy: Policy, part: MicroBatch, targets: Targets, settings: Update, temperature: float
) -> tuple[Tensor, LossSums]:
    """Return the loss of a micro-batch, and the sums of its terms. The loss is the sum over tokens of

        weight * (importance * surrogate + kl * KL - entropy_weight * entropy)

    It takes one forward pass, which never holds the logits of all tokens at once.
    """
    pack = pack_groups(part.groups, policy.device)
    hidden_MD = policy.hidden(pack)[pack.source_M]
    has_entropy = settings.entropy_weight != 0
    logp_M, entropy_M = token_stats(hidden_MD, policy.head_VD, pack.target_M, temperature, entropy_gradient=has_entropy)
    return _loss(logp_M, entropy_M if has_entropy else None, targets.of(part.rows), settings)


def clip_of(settings: Update) -> Clip:
    high = settings.clip if settings.clip_high is None else settings.clip_high
    return Clip(settings.clip, high, settings.dual_clip)


def importance_weights(trainer_M: Tensor, sampler_M: Tensor, cap: float) -> Tensor:
    """Return min(exp(trainer's logp - sampler's logp), cap) for each token, without a gradient.

    Truncated importance sampling (Yao et al. 2025): it corrects for a sampler that computes slightly other
    probabilities than the trainer. Equal to verl's `rollout_is: token`.
    """
    return (trainer_M - sampler_M).detach().clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp().clamp(max=cap)


def _loss(
    logp_M: Tensor, entropy_M: Tensor | None, targets: _TokenTargets, settings: Update
) -> tuple[Tensor, LossSums]:
    sampler_M = old_M = targets.old_logp_M
    importance_M = None
    if settings.importance_cap is not None:
        # The ratio compares two policies of the trainer; what the sampler computes differently is in the weight alone.
        old_M = logp_M.detach() if targets.trainer_M is None else targets.trainer_M
        importance_M = importance_weights(old_M, sampler_M, settings.importance_cap)
    tokens = LossTokens(logp_M, old_M, targets.advantage_M, targets.row_M, targets.marked_M)
    surrogate = loss_named(settings.loss)(tokens, clip_of(settings), **settings.settings_of_loss)
    loss_M = surrogate.loss_M if importance_M is None else importance_M * surrogate.loss_M
    pg_loss = loss = (targets.weight_M * loss_M).sum()
    kl_M = torch.zeros_like(logp_M)
    if targets.reference_M is not None:
        kl_M = KL_ESTIMATORS[settings.kl_estimator](logp_M, targets.reference_M)
        loss = loss + settings.kl * (targets.weight_M * kl_M).sum()
    if entropy_M is not None:
        loss = loss - settings.entropy_weight * (targets.weight_M * entropy_M).sum()
    apart_M = LossTokens(logp_M, sampler_M, targets.advantage_M, targets.row_M).log_ratio_M().detach().abs()
    capped = 0.0 if importance_M is None else (importance_M >= (settings.importance_cap or 0.0)).sum()
    sums = LossSums(
        pg_loss=pg_loss.detach(),
        kl=kl_M.detach().sum(),
        clipped=surrogate.clipped_M.sum(),
        capped=surrogate.capped_M.sum(),
        minus_log_ratio=(-tokens.log_ratio_M().detach()).sum(),
        abs_log_ratio=apart_M.sum(),
        num_tokens=float(len(logp_M)),
        entropy=0.0 if entropy_M is None else entropy_M.detach().sum(),
        marked=0.0 if targets.marked_M is None else targets.marked_M.sum(),
        importance=0.0 if importance_M is None else importance_M.sum(),
        importance_capped=capped,
        max_log_ratio=apart_M.amax() if len(logp_M) else 0.0,
    )
    return loss, sums
