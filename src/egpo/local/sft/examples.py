"""Examples in flat tables: machine integers, no Python object per token. E examples, S tokens of all of them."""

from array import array
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from egpo.local.sft.encoding import Encoded


@dataclass(frozen=True, eq=False)
class Examples:
    """Example e holds the tokens from `start[e]` up to `start[e + 1]`, and comes from row `row_E[e]` of its file.
    `learned_S` marks the tokens that carry loss: never the first of an example, which nothing predicts."""

    token_S: Tensor
    learned_S: Tensor
    start: Tensor
    row_E: Tensor

    def __len__(self) -> int:
        return len(self.row_E)

    @cached_property
    def length_E(self) -> Tensor:
        return self.start.diff()

    @cached_property
    def num_learned_E(self) -> Tensor:
        return _starts(self.learned_S.long())[self.start].diff()

    def tokens_of(self, example: int) -> slice:
        """Where its tokens lie in the tables."""
        return slice(int(self.start[example]), int(self.start[example + 1]))

    def take(self, chosen: Tensor) -> "Examples":
        """These examples, in this order, in tables of their own."""
        length = self.length_E[chosen]
        start = _starts(length)
        index = torch.arange(int(start[-1])) + (self.start[chosen] - start[:-1]).repeat_interleave(length)
        return Examples(self.token_S[index], self.learned_S[index], start, self.row_E[chosen])


class ExampleTable:
    """Grows by examples."""

    def __init__(self) -> None:
        self._tokens, self._learned = array("i"), bytearray()
        self._lengths, self._rows = array("q"), array("q")

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, encoded: Encoded, row: int) -> None:
        learned = bytearray(len(encoded.tokens))
        for start, end in encoded.spans:
            learned[start:end] = b"\1" * (end - start)
        learned[0] = 0
        self._tokens.extend(encoded.tokens)
        self._learned += learned
        self._lengths.append(len(encoded.tokens))
        self._rows.append(row)

    def examples(self) -> Examples:
        return Examples(
            token_S=torch.frombuffer(self._tokens, dtype=torch.int32),
            learned_S=torch.frombuffer(self._learned, dtype=torch.bool),
            start=_starts(torch.frombuffer(self._lengths, dtype=torch.long)),
            row_E=torch.frombuffer(self._rows, dtype=torch.long),
        )


def _starts(length: Tensor) -> Tensor:
    """Where each begins, and at last where all end."""
    return torch.cat([length.new_zeros(1), length.cumsum(0)])
