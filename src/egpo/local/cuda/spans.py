"""A pack as attention over sequences of any length takes it: every prompt is a sequence, and so is every response,
whose keys are its prompt's and its own.

N tokens of the pack, M keys once every response has its prompt's beside its own.
"""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from egpo.local.policies.attention import PackLayout


@dataclass(frozen=True, eq=False)
class Spans:
    """`source_M`: the token of the pack that each key is. `order_M` lists the keys by that token, and those of token n
    begin at `first_N1[n]`. `query_starts` and `key_starts` bound the sequences, int32."""

    source_M: Tensor
    order_M: Tensor
    first_N1: Tensor
    query_starts: Tensor
    key_starts: Tensor
    longest_query: int
    longest_key: int

    @classmethod
    def of(cls, layout: PackLayout) -> "Spans":
        sources, queries, keys = [], [], []
        num_tokens = 0
        for group in layout.groups:
            prompt = torch.arange(group.start, group.responses_start)
            own = torch.split(torch.arange(group.responses_start, group.end), list(group.lengths))
            for length, tokens in ((group.prompt_length, None), *zip(group.lengths, own, strict=True)):
                if length:
                    sources += [prompt] if tokens is None else [prompt, tokens]
                    queries.append(length)
                    keys.append(length + (0 if tokens is None else group.prompt_length))
            num_tokens = group.end
        source_M = torch.cat(sources).to(layout.device)
        ordered, order_M = source_M.sort(stable=True)
        bounds = torch.arange(num_tokens + 1, device=layout.device)
        return cls(
            source_M=source_M,
            order_M=order_M,
            first_N1=torch.searchsorted(ordered, bounds),
            query_starts=_starts(queries, layout.device),
            key_starts=_starts(keys, layout.device),
            longest_query=max(queries),
            longest_key=max(keys),
        )


def _starts(lengths: list[int], device: torch.device) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
