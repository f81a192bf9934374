"""The gradient of one mini-batch's loss, summed over micro-batches. B rows, T tokens; M response tokens of a pack."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from egpo.config.sections.update import Update
from egpo.local.policies.packs import pack_groups
from egpo.local.policies.policy import Policy
from egpo.local.updates.kl import KL_ESTIMATORS
from egpo.local.updates.loss import clipped_surrogate
from egpo.local.updates.micro_batches import MicroBatch
from egpo.token_stats import token_stats


@dataclass(frozen=True, eq=False)
class Targets:
    """What the loss compares the policy with, on its device. `reference_BT` only where KL is a term of the loss."""

    old_logp_BT: Tensor
    mask_BT: Tensor
    advantage_B: Tensor
    weight_B: Tensor
    reference_BT: Tensor | None = None

    def of(self, rows: Sequence[int]) -> "_TokenTargets":
        """At the tokens of these rows, in order."""
        row_R = torch.tensor(rows, device=self.mask_BT.device)
        mask_RT = self.mask_BT[row_R]
        length_R = mask_RT.sum(1)
        return _TokenTargets(
            old_logp_M=self.old_logp_BT[row_R][mask_RT],
            advantage_M=self.advantage_B[row_R].repeat_interleave(length_R),
            weight_M=self.weight_B[row_R].repeat_interleave(length_R),
            reference_M=None if self.reference_BT is None else self.reference_BT[row_R][mask_RT],
        )


@dataclass(frozen=True, eq=False)
class _TokenTargets:
    old_logp_M: Tensor
    advantage_M: Tensor
    weight_M: Tensor
    reference_M: Tensor | None


@dataclass(frozen=True)
class LossSums:
    """Sums over tokens, to be divided where they are reported; `pg_loss` is weighted already. 0-d tensors, so that no
    micro-batch waits for the device, or numbers."""

    pg_loss: Tensor | float = 0.0
    kl: Tensor | float = 0.0
    clipped: Tensor | float = 0.0
    capped: Tensor | float = 0.0
    minus_log_ratio: Tensor | float = 0.0
    num_tokens: Tensor | float = 0.0

    def __add__(self, other: "LossSums") -> "LossSums":
        return LossSums(*(mine + theirs for mine, theirs in zip(self._values(), other._values(), strict=True)))

    def as_numbers(self) -> "LossSums":
        return LossSums(*map(float, self._values()))

    def _values(self) -> Iterator[Tensor | float]:
        return (getattr(self, field.name) for field in fields(self))


def loss_of(
    policy: Policy, part: MicroBatch, targets: Targets, settings: Update, temperature: float
) -> tuple[Tensor, LossSums]:
    """One forward pass: the sum over tokens of weight * (surrogate + kl * KL), without the logits ever standing whole.
    Entropy has no gradient."""
    pack = pack_groups(part.groups, policy.device)
    hidden_MD = policy.hidden(pack)[pack.source_M]
    logp_M, _ = token_stats(hidden_MD, policy.head_VD, pack.target_M, temperature)
    return _loss(logp_M, targets.of(part.rows), settings)


def _loss(logp_M: Tensor, targets: _TokenTargets, settings: Update) -> tuple[Tensor, LossSums]:
    high = settings.clip if settings.clip_high is None else settings.clip_high
    surrogate = clipped_surrogate(
        logp_M, targets.old_logp_M, targets.advantage_M, low=settings.clip, high=high, dual=settings.dual_clip
    )
    pg_loss = loss = (targets.weight_M * surrogate.loss_M).sum()
    kl_M = torch.zeros_like(logp_M)
    if targets.reference_M is not None:
        kl_M = KL_ESTIMATORS[settings.kl_estimator](logp_M, targets.reference_M)
        loss = pg_loss + settings.kl * (targets.weight_M * kl_M).sum()
    sums = LossSums(
        pg_loss=pg_loss.detach(),
        kl=kl_M.detach().sum(),
        clipped=surrogate.clipped_M.sum(),
        capped=surrogate.capped_M.sum(),
        minus_log_ratio=surrogate.minus_log_ratio_M.sum(),
        num_tokens=float(len(logp_M)),
    )
    return loss, sums
