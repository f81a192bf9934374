"""A mini-batch on several cores: whose rows each takes, and how their gradients become one."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from egpo.local.updates.micro_batches import RowTokens, micro_batches


def row_shares(rows: Sequence[int], tokens: RowTokens, sides: int) -> list[list[int]]:
    """Every row that has tokens in one of at most `sides` shares of like numbers of tokens: the largest piece first,
    to the share with the least. Groups stay together unless there are too few of them."""
    if sides == 1:
        return [list(rows)]
    groups = [group for part in micro_batches(rows, tokens, budget=1 << 60) for group in part.groups]
    largest = max((group.num_tokens for group in groups), default=0)
    # Where groups are cut, each piece has the prompt.
    prompt = max((len(group.prompt) for group in groups), default=0)
    fair = -(-(sum(group.num_tokens for group in groups) + prompt * (sides - 1)) // sides)
    shares: list[list[int]] = [[] for _ in range(sides)]
    loads = [0] * sides
    for piece in micro_batches(rows, tokens, budget=min(fair, largest)):
        place = loads.index(min(loads))
        shares[place].extend(piece.rows)
        loads[place] += piece.num_tokens
    return [share for share in shares if share]


class OwnGradients:
    """The sum of one share's gradients, apart from the weights' own, which other shares must not meet half way."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._weights = [weight for weight in parameters if weight.requires_grad]
        self._sums: list[Tensor | None] = [None] * len(self._weights)

    def add(self, loss: Tensor) -> None:
        found = torch.autograd.grad(loss, self._weights, allow_unused=True)
        self._sums = [_sum(known, new) for known, new in zip(self._sums, found, strict=True)]

    def forget(self) -> None:
        self._sums = [None] * len(self._weights)

    def hand_over(self) -> None:
        """To the weights. Share by share in order, so that their sum does not depend on who was done first."""
        for weight, gradient in zip(self._weights, self._sums, strict=True):
            weight.grad = _sum(weight.grad, gradient)


def _sum(known: Tensor | None, new: Tensor | None) -> Tensor | None:
    """In place of the first."""
    if known is None or new is None:
        return new if known is None else known
    return known.add_(new)
