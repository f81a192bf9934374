"""Packs: the sequences of one forward pass side by side without padding, each prompt once for all its responses.

Tensor suffixes: P problems, B rows; N tokens of a pack, M response tokens of a pack; G rows of a group, T tokens of its
longest response. A pack is a list of groups. A group is a prompt and the responses that share it: the prompt attends to
itself, and a response attends to its prompt and to itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, compress

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sequences:
    """A prompt and the responses to it, as token ids. Without responses, the prompt is a sequence by itself.

    `sampled` marks the tokens of each response that the model sampled; the others, which an environment wrote, are read
    and not predicted. None: all were sampled.
    """

    prompt: Sequence[int]
    responses: Sequence[Sequence[int]] = ()
    sampled: Sequence[Sequence[bool]] | None = None

    @property
    def num_tokens(self) -> int:
        """The number of tokens in a pack. The last token of a response predicts nothing, and is left out."""
        return len(self.prompt) + sum(len(response) - 1 for response in self.responses)


@dataclass(frozen=True, eq=False)
class Pack:
    """The input of one forward pass.

    The hidden state at position `source_M[m]` predicts the sampled token `target_M[m]`. These are ordered by group,
    response and token.
    """

    token_N: Tensor
    position_N: Tensor
    layout: "PackLayout"
    source_M: Tensor
    target_M: Tensor


def pack_groups(groups: Sequence[Sequences], device: torch.device | str = "cpu") -> Pack:
    """Concatenate the tokens of these groups for one forward pass: each prompt once, followed by its responses.

    No prompt and no response may be empty.
    """
    tokens: list[int] = []
    positions: list[Tensor] = []
    sources: list[Tensor] = []
    layouts = []
    for group in groups:
        prompt_length, start = len(group.prompt), len(tokens)
        assert prompt_length > 0, "a prompt without tokens"
        tokens.extend(group.prompt)
        positions.append(torch.arange(prompt_length))
        for index, response in enumerate(group.responses):
            # The first token is predicted by the prompt's last one, each later token by the one before it.
            before = torch.arange(len(tokens) - 1, len(tokens) + len(response) - 1)
            before[0] = start + prompt_length - 1
            sources.append(before if group.sampled is None else before[torch.tensor(group.sampled[index])])
            positions.append(torch.arange(prompt_length, prompt_length + len(response) - 1))
            tokens.extend(response[:-1])
        layouts.append(GroupLayout(start, prompt_length, tuple(len(response) - 1 for response in group.responses)))
    targets = [token for group in groups for token in _predicted(group)]
    return Pack(
        token_N=torch.tensor(tokens, device=device),
        position_N=torch.cat(positions).to(device),
        layout=PackLayout(tuple(layouts), torch.device(device)),
        source_M=(torch.cat(sources) if sources else torch.empty(0, dtype=torch.long)).to(device),
        target_M=torch.tensor(targets, dtype=torch.long, device=device),
    )


def _predicted(group: Sequences) -> Iterator[int]:
    """Yield the tokens of the responses that were sampled, in order."""
    if group.sampled is None:
        for response in group.responses:
            yield from response
    else:
        for response, sampled in zip(group.responses, group.sampled, strict=True):
            yield from compress(response, sampled)


@dataclass(frozen=True)
class GroupLayout:
    """The place of a group in a pack: `start`, the length of its prompt, and the lengths of its responses in tokens."""

    start: int
    prompt_length: int
    lengths: tuple[int, ...]

    @property
    def responses_start(self) -> int:
        return self.start + self.prompt_length

    @property
    def end(self) -> int:
        return self.responses_start + sum(self.lengths)

    @property
    def longest(self) -> int:
        return max(self.lengths, default=0)


@dataclass(frozen=True)
class PackLayout:
    """The places of all groups of a pack, in order, without gaps."""

    groups: tuple[GroupLayout, ...]
    device: torch.device

    @cached_property
    def longest(self) -> int:
        """The number of tokens of the longest sequence: a prompt with its longest response."""
        return max(group.prompt_length + group.longest for group in self.groups)

    @cached_property
    def sizes(self) -> list[int]:
        """The number of tokens of each group's prompt and of all its responses together, group by group."""
        return [size for group in self.groups for size in (group.prompt_length, sum(group.lengths))]

    @cached_property
    def parts(self) -> Tensor:
        """The table (parts, 4), int32, that describes each prompt and each response (a part) to the C kernel.

        Its columns are start and length of the part, and start and length of the prompt that it follows (length 0 for
        a prompt).
        """
        rows = [row for group in self.groups for row in _part_rows(group)]
        return torch.tensor(rows, dtype=torch.int32).view(-1, 4)

    @cached_property
    def group_firsts(self) -> Tensor:
        """The index of each group's first part, and the number of all parts (int32)."""
        sizes = [0, *(1 + len(group.lengths) for group in self.groups)]
        return torch.tensor(sizes).cumsum(0).to(torch.int32)

    @cached_property
    def rectangles(self) -> "tuple[GroupRectangle, ...]":
        """Each group's responses as a rectangle, computed once per pack for all layers."""
        return tuple(GroupRectangle(group, self.device) for group in self.groups)


def _part_rows(group: GroupLayout) -> Iterator[tuple[int, int, int, int]]:
    yield group.start, group.prompt_length, group.start, 0
    start = group.responses_start
    for length in group.lengths:
        yield start, length, group.start, group.prompt_length
        start += length


class GroupRectangle:
    """A group's responses as a rectangle (G, T), and the mask of attention over it, for attention through torch."""

    def __init__(self, group: GroupLayout, device: torch.device) -> None:
        self.group = group
        rows, longest = len(group.lengths), group.longest
        self.ragged = any(length != longest for length in group.lengths)
        length_G = torch.tensor(group.lengths, dtype=torch.long)
        if self.ragged:
            step_T = torch.arange(longest)
            first_G = length_G.cumsum(0) - length_G
            inside_GT = step_T < length_G[:, None]
            # Cells past the end of a response repeat a token: nothing attends to them, and their output is dropped.
            self.index = torch.where(inside_GT, first_G[:, None] + step_T, 0).flatten().to(device)
            self.kept = inside_GT.flatten().nonzero()[:, 0].to(device)
        self.rows, self.longest, self.device = rows, longest, device
        self._bias: Tensor | None = None

    def bias(self, repeats: int, dtype: torch.dtype) -> Tensor:
        """Return the bias of the attention scores (repeats * T, L + T), which is the causal mask.

        It is 0 over the prompt's L tokens and over the response up to the token itself, else minus infinity.
        """
        if self._bias is None:  # the same for every layer
            self._bias = self._make_bias(repeats, dtype)
        return self._bias

    def fill(self, tensor: Tensor) -> Tensor:
        """Convert the concatenated responses (1, H, tokens, d) to one padded row per response (G, H, T, d)."""
        part = tensor[0]
        if self.ragged:
            part = part.index_select(1, self.index)
        return part.view(part.shape[0], self.rows, self.longest, -1).transpose(0, 1)

    def _make_bias(self, repeats: int, dtype: torch.dtype) -> Tensor:
        seen_TT = torch.ones(self.longest, self.longest, dtype=torch.bool, device=self.device).tril()
        seen = torch.cat([seen_TT.new_ones(self.longest, self.group.prompt_length), seen_TT], dim=1)
        return (
            torch.zeros(seen.shape, dtype=dtype, device=self.device).masked_fill(~seen, -torch.inf).repeat(repeats, 1)
        )


@dataclass(frozen=True, eq=False)
class VarlenLayout:
    """The layout of a pack for variable-length attention. Here M is the number of keys of all sequences.

    Each prompt and each response is a sequence of queries. The keys of a response are those of its prompt, then its
    own. `source_M`: the token of the pack that each key belongs to. `order_M`: the indices of the keys sorted by that
    token; those of token n start at `first_N1[n]`. `query_starts` and `key_starts` (int32): the boundaries of the
    sequences.
    """

    source_M: Tensor
    order_M: Tensor
    first_N1: Tensor
    query_starts: Tensor
    key_starts: Tensor
    longest_query: int
    longest_key: int

    @classmethod
    def of(cls, layout: PackLayout) -> "VarlenLayout":
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
