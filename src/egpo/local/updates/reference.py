"""The reference policy, from which training started, and log-probabilities computed as in the update.

Tensor suffixes: B rows, T tokens, M response tokens of a pack.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from egpo.config.sections.training import Model
from egpo.local.models.loading import load_policy
from egpo.local.models.lora import adapters_off
from egpo.local.models.packs import pack_groups
from egpo.local.models.policy import Policy
from egpo.local.rollouts import Rollouts
from egpo.local.updates.micro_batches import MicroBatch, RowTokens, TokenBudget, micro_batches, within_memory
from egpo.token_stats import token_stats


@dataclass(frozen=True, eq=False)
class Reference:
    """The policy that training started from: a frozen copy or, if adapters are trained, the policy without them."""

    policy: Policy
    is_adapted: bool

    @contextmanager
    def at_start(self) -> Iterator[Policy]:
        """Yield the policy that training started from. It is valid only within the `with` block."""
        if self.is_adapted:
            with adapters_off(self.policy.model):
                yield self.policy
        else:
            yield self.policy


def load_reference(policy: Policy, settings: Model, seed: int) -> Reference:
    """Return the reference for a policy that was loaded with these settings and this seed. Call it before training."""
    if settings.lora is not None:
        return Reference(policy, is_adapted=True)
    copy = load_policy(settings.model_copy(update={"gradient_checkpointing": False}), seed)
    copy.model.requires_grad_(False)
    return Reference(copy, is_adapted=False)


def reference_logp(reference: Reference, rollouts: Rollouts, temperature: float, budget: TokenBudget) -> Tensor:
    """Return the reference's log-probability of each sampled token at the temperature (B, T); 0 outside the mask."""
    with reference.at_start() as policy:
        return packed_logp(policy, rollouts, temperature, budget)


@torch.no_grad()
def packed_logp(policy: Policy, rollouts: Rollouts, temperature: float, budget: TokenBudget) -> Tensor:
    """Return a policy's log-probability of each sampled token (B, T), by forward passes that fit the budget."""
    tokens = RowTokens.of(rollouts)
    logp_BT = torch.zeros_like(rollouts.logp_BT)

    def write(part: MicroBatch) -> None:
        pack = pack_groups(part.groups, policy.device)
        logp_M, _ = token_stats(policy.hidden(pack)[pack.source_M], policy.head_VD, pack.target_M, temperature)
        row_R = torch.tensor(part.rows, device=logp_BT.device)
        part_RT = torch.zeros_like(logp_BT[row_R])
        part_RT[rollouts.mask_BT[row_R]] = logp_M
        logp_BT[row_R] = part_RT

    rows = range(len(rollouts))
    within_memory(budget, lambda size: micro_batches(rows, tokens, size), write, undo=lambda: None)
    return logp_BT
