"""Examples side by side in one forward pass: no padding, and no attention from one to another.

N tokens of a pack, M learned tokens of it, E examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from egpo.local.policies.attention import GroupLayout, PackLayout
from egpo.local.policies.packs import Pack
from egpo.local.sft.examples import Examples

_SHORTEST_FRAC = 0.75
"""Of the longest: rows of one rectangle of attention. Less would compute on padding, more would launch many kernels."""


@dataclass(frozen=True, eq=False)
class Part:
    """Examples that go through the model together, longest first; `lengths` without the last token, which predicts
    nothing."""

    examples: Tensor
    lengths: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        return sum(self.lengths)


def cut_by_tokens(examples: Tensor, length_E: Tensor, budget: int) -> list[Part]:
    """Every example once, neighbours in length together, in parts of at most `budget` tokens; a longer one alone."""
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
    """Each example is a response without a prompt; its learned tokens are the pack's targets."""
    # numpy: at these sizes torch's threads cost ten times the work.
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
    """Rows of similar length share a rectangle; they come longest first."""
    groups: list[list[int]] = []
    for length in lengths:
        if not groups or length < _SHORTEST_FRAC * groups[-1][0]:
            groups.append([])
        groups[-1].append(length)
    starts = torch.tensor([0, *(sum(group) for group in groups)]).cumsum(0).tolist()
    return tuple(GroupLayout(start, 0, tuple(group)) for start, group in zip(starts, groups, strict=False))
