"""The policy that training started from, for the KL divergence. B rows, T tokens; M response tokens of a pack."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from egpo.config.sections.training import Model
from egpo.local.models.load import load_policy
from egpo.local.models.lora import adapters_off
from egpo.local.models.packs import pack_groups
from egpo.local.models.policy import Policy
from egpo.local.rollouts import Rollouts
from egpo.local.updates.budget import TokenBudget, within_memory
from egpo.local.updates.gradients import MicroBatch, RowTokens, micro_batches
from egpo.token_stats import token_stats


@dataclass(frozen=True, eq=False)
class Reference:
    """A frozen second copy; or, where adapters are trained, the policy itself with its adapters off."""

    policy: Policy
    is_adapted: bool

    @contextmanager
    def at_start(self) -> Iterator[Policy]:
        """Within the block the policy is the one that training started from."""
        if self.is_adapted:
            with adapters_off(self.policy.model):
                yield self.policy
        else:
            yield self.policy


def load_reference(policy: Policy, settings: Model, seed: int) -> Reference:
    """Of the policy that these settings and this seed give, however far it has been trained since."""
    if settings.lora is not None:
        return Reference(policy, is_adapted=True)
    copy = load_policy(settings.model_copy(update={"gradient_checkpointing": False}), seed)
    copy.model.requires_grad_(False)
    return Reference(copy, is_adapted=False)


def reference_logp(reference: Reference, rollouts: Rollouts, temperature: float, budget: TokenBudget) -> Tensor:
    """Its log-probability of each sampled token, at the sampling temperature (B, T); 0 outside the mask."""
    with reference.at_start() as policy:
        return packed_logp(policy, rollouts, temperature, budget)


@torch.no_grad()
def packed_logp(policy: Policy, rollouts: Rollouts, temperature: float, budget: TokenBudget) -> Tensor:
    """A policy's log-probabilities by the forward pass of the update, in parts that fit the budget (B, T)."""
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
