"""Which examples make which optimizer step: a pure function of lengths, seed and budget. E examples."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from egpo.local.draws import Draws


@dataclass(frozen=True)
class Batch:
    """The examples of one optimizer step."""

    epoch: int
    examples: Tensor


def plan(length_E: Tensor, *, batch_tokens: int, epochs: int, seed: int) -> list[Batch]:
    """All steps of a run. Each epoch takes every example once, in an order of its own; a step takes the next ones
    while they fit, and one at least. The last step of an epoch may be smaller: nothing is left out."""
    return [
        Batch(epoch, part)
        for epoch in range(epochs)
        for part in _cut(_order(len(length_E), seed, epoch), length_E, batch_tokens)
    ]


def _order(num_examples: int, seed: int, epoch: int) -> Tensor:
    return torch.tensor(Draws(seed, epoch, "sft").permutation(num_examples, "order"))


def _cut(order: Tensor, length_E: Tensor, budget: int) -> Sequence[Tensor]:
    end_E = length_E[order].cumsum(0)
    parts, first, taken = [], 0, 0
    while first < len(order):
        last = max(first + 1, int(torch.searchsorted(end_E, taken + budget, right=True)))
        parts.append(order[first:last])
        first, taken = last, int(end_E[last - 1])
    return parts
