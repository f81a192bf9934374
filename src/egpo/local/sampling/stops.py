"""When a response is over: a stop token, or a stop string somewhere in its text."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Stops:
    ids: frozenset[int]
    strings: tuple[str, ...] = ()

    def over(self, token_R: Tensor, written: Sequence[Sequence[int]], tokenizer: PreTrainedTokenizerBase) -> Tensor:
        """Which rows just ended. `written` are the tokens of each row so far, the new one included; read only where
        there are stop strings."""
        over_R = torch.isin(token_R, torch.tensor(sorted(self.ids), device=token_R.device))
        if not self.strings:
            return over_R
        tails = tokenizer.batch_decode([row[-self.num_tail_tokens :] for row in written])
        found = [any(string in tail for string in self.strings) for tail in tails]
        return over_R | torch.tensor(found, device=token_R.device)

    @property
    def num_tail_tokens(self) -> int:
        """A token holds a byte at least, so that this many reach over the longest string and a broken character."""
        return max(len(string.encode()) for string in self.strings) + 4
