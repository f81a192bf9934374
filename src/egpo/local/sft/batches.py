"""From examples to forward passes: training and evaluation set, the batches of all steps, packs.

A pack holds several examples without padding; no example attends to another. Tensor suffixes: E examples, N tokens of a
pack, M learned tokens of it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from egpo.config.schema import SftData
from egpo.data import split_rows
from egpo.errors import InputError
from egpo.local.draws import Draws
from egpo.local.models.packs import GroupLayout, Pack, PackLayout
from egpo.local.models.policy import Policy
from egpo.local.sft.examples import Examples, read_examples


@dataclass(frozen=True)
class ExampleBatch:
    """The examples of one optimizer step, and its epoch."""

    epoch: int
    examples: Tensor


def plan_batches(length_E: Tensor, *, batch_tokens: int, epochs: int, seed: int) -> list[ExampleBatch]:
    """Return the batches of all steps, which depend only on the arguments.

    Each epoch contains every example once, in a new random order. A step takes the next examples as long as they fit
    into `batch_tokens`, and at least one. The last step of an epoch may be smaller.
    """
    return [
        ExampleBatch(epoch, part)
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


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Training and evaluation set. `num_rows` and `dropped` count the rows of the training file."""

    train: Examples
    evaluation: Examples | None
    num_rows: int
    dropped: Counter[str]


def load_data(settings: SftData, policy: Policy, seed: int) -> TrainingData:
    """Read, tokenise and split all data for training and evaluation."""
    reading = read_examples(Path(settings.path), policy, settings.max_tokens)
    train, evaluation = reading.examples, None
    if settings.eval_path is not None:
        evaluation = read_examples(Path(settings.eval_path), policy, settings.max_tokens).examples
    elif settings.eval_frac:
        train, evaluation = _split(train, settings.eval_frac, seed)
    return TrainingData(train, evaluation, reading.num_rows, reading.dropped)


def _split(examples: Examples, eval_frac: float, seed: int) -> tuple[Examples, Examples]:
    """Split examples into training and evaluation set by rows of the file: a conversation's answers stay together."""
    rows = np.unique(examples.row_E.numpy())
    if len(rows) < 2:
        raise InputError(
            "a single conversation cannot be split into training and evaluation set",
            where="data.eval_frac",
            fix="give more conversations, or an evaluation file (data.eval_path)",
        )
    held_out = torch.isin(examples.row_E, torch.from_numpy(split_rows(rows, eval_frac, seed).test))
    return examples.take((~held_out).nonzero()[:, 0]), examples.take(held_out.nonzero()[:, 0])


_SHORTEST_FRAC = 0.75
"""Smallest ratio of the shortest to the longest row in one attention rectangle. A lower value wastes time on padding, a
higher value needs more kernel launches."""


@dataclass(frozen=True, eq=False)
class Part:
    """Examples of one forward pass, longest first. `lengths` exclude the last token, which predicts nothing."""

    examples: Tensor
    lengths: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)


def cut_by_tokens(examples: Tensor, length_E: Tensor, budget: int) -> list[Part]:
    """Sort examples by length, and cut them into parts of at most `budget` tokens; a longer example is its own part."""
    order = examples[(length_E[examples]).argsort(descending=True, stable=True)]
    lengths = (length_E[order] - 1).tolist()
    cuts, load = [0], 0
    for i, length in enumerate(lengths):
        if load and load + length > budget:
            cuts.append(i)
            load = 0
        load += length
    cuts.append(len(lengths))
    return [Part(order[a:b], tuple(lengths[a:b])) for a, b in pairwise(cuts)]


def pack_examples(examples: Examples, part: Part, device: torch.device) -> Pack:
    """Pack the examples of a part as responses without a prompt. The learned tokens are the targets."""
    # numpy: at these sizes torch's threads take ten times as long.
    length_R = np.asarray(part.lengths)
    position_N = np.arange(part.num_tokens) - np.repeat(length_R.cumsum() - length_R, length_R)
    place_N = np.repeat(examples.start.numpy()[part.examples.numpy()], length_R) + position_N
    token_S, learned_S = examples.token_S.numpy(), examples.learned_S.numpy()
    (source_M,) = learned_S[place_N + 1].nonzero()
    return Pack(
        token_N=_on(device, token_S[place_N]),
        position_N=_on(device, position_N),
        layout=PackLayout(_rectangles(part.lengths), device),
        source_M=_on(device, source_M),
        target_M=_on(device, token_S[place_N[source_M] + 1]),
    )


def _on(device: torch.device, values: "np.ndarray[tuple[int], np.dtype[np.int32 | np.int64]]") -> Tensor:
    return torch.from_numpy(values).to(device).long()


def _rectangles(lengths: Sequence[int]) -> tuple[GroupLayout, ...]:
    """Group rows of similar length into attention rectangles. `lengths` are in descending order."""
    groups: list[list[int]] = []
    for length in lengths:
        if not groups or length < _SHORTEST_FRAC * groups[-1][0]:
            groups.append([])
        groups[-1].append(length)
    starts = torch.tensor([0, *(sum(group) for group in groups)]).cumsum(0).tolist()
    return tuple(GroupLayout(start, 0, tuple(group)) for start, group in zip(starts, groups, strict=False))
