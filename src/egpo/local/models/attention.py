"""Attention over the two shapes that the engine feeds a model, registered with transformers under one name.

A *pack* is groups side by side, each a prompt and the responses that share it: the prompt attends to itself, a response
to its prompt and to itself. *Slots* are rows that each hold a sequence from slot 0 on, and get one more token.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from egpo.errors import InputError

NAME = "egpo"
"""The model's `_attn_implementation`. transformers builds no mask for a name that it does not know."""


@dataclass(frozen=True)
class GroupLayout:
    """Where a group lies: `start`, a prompt of `prompt_length` tokens, then responses of these lengths."""

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
    """The groups of a pack, in order, without gaps."""

    groups: tuple[GroupLayout, ...]
    device: torch.device

    @cached_property
    def longest(self) -> int:
        """Of the sequences: a prompt with its longest response."""
        return max(group.prompt_length + group.longest for group in self.groups)

    @cached_property
    def sizes(self) -> list[int]:
        """Tokens of each group's prompt, then of all its responses."""
        return [size for group in self.groups for size in (group.prompt_length, sum(group.lengths))]

    @cached_property
    def parts(self) -> Tensor:
        """(parts, 4), int32: where each prompt and each response lies and ends, and the prompt that it goes on from,
        which for a prompt is none."""
        rows = [row for group in self.groups for row in _part_rows(group)]
        return torch.tensor(rows, dtype=torch.int32).view(-1, 4)

    @cached_property
    def group_firsts(self) -> Tensor:
        """Each group's first part, and the number of all parts (int32)."""
        sizes = [0, *(1 + len(group.lengths) for group in self.groups)]
        return torch.tensor(sizes).cumsum(0).to(torch.int32)

    @cached_property
    def placed(self) -> "tuple[_PlacedGroup, ...]":
        """What every layer needs of a group, made once a pack."""
        return tuple(_PlacedGroup(group, self.device) for group in self.groups)


def _part_rows(group: GroupLayout) -> Iterator[tuple[int, int, int, int]]:
    yield group.start, group.prompt_length, group.start, 0
    start = group.responses_start
    for length in group.lengths:
        yield start, length, group.start, group.prompt_length
        start += length


class _PlacedGroup:
    """A group's responses as a rectangle of `longest` tokens, where they are not of one length already."""

    def __init__(self, group: GroupLayout, device: torch.device) -> None:
        self.group = group
        rows, longest = len(group.lengths), group.longest
        self.ragged = any(length != longest for length in group.lengths)
        length_G = torch.tensor(group.lengths, dtype=torch.long)
        if self.ragged:
            step_T = torch.arange(longest)
            first_G = length_G.cumsum(0) - length_G
            inside_GT = step_T < length_G[:, None]
            # Places past the end repeat a token of the pack: nothing attends to them, and what they see is dropped.
            self.index = torch.where(inside_GT, first_G[:, None] + step_T, 0).flatten().to(device)
            self.kept = inside_GT.flatten().nonzero()[:, 0].to(device)
        self.rows, self.longest, self.device = rows, longest, device
        self._bias: Tensor | None = None

    def bias(self, repeats: int, dtype: torch.dtype) -> Tensor:
        """(repeats * T, L + T), added to the scores: the prompt's L tokens, then the response up to the own token."""
        if self._bias is None:  # the same for every layer
            self._bias = self._make_bias(repeats, dtype)
        return self._bias

    def rectangle(self, tensor: Tensor) -> Tensor:
        """(1, H, tokens, d) of the responses to (rows, H, longest, d)."""
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
class SlotLayout:
    """Rows of slots. `bias_R11S` is 0 over a row's own slots and minus infinity past them."""

    bias_R11S: Tensor


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: PackLayout | SlotLayout | None = None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function as transformers calls it: (1, H, N, d) or (R, H, 1, d) in, tokens before heads out."""
    if layout is None:
        raise InputError(
            f"{type(module).__name__} hands its attention nothing of what the engine gave the model",
            where="model",
            fix="use a causal language model whose layers pass keyword arguments on, such as Qwen3 or Llama",
        )
    _require_plain(options, layout.longest if isinstance(layout, PackLayout) else key.shape[-2])
    if isinstance(layout, SlotLayout):
        return _attend_slots(query, key, value, layout, scaling), None
    return attend_pack(query, key, value, layout, scaling), None


def attend_pack(query: Tensor, key: Tensor, value: Tensor, layout: PackLayout, scaling: float | None) -> Tensor:
    """(1, N, H, d) of (1, H, N, d)."""
    return torch.cat(list(_attend_groups(query, key, value, layout, scaling)), dim=1)


def _require_plain(options: dict[str, Any], longest: int) -> None:
    """Kinds of attention that neither shape computes. A window that no sequence reaches past is no window."""
    window = options.get("sliding_window")
    faults = {
        f"a sliding window of {window} tokens": window is not None and window < longest,
        "capped scores": options.get("softcap") is not None,
        "attention sinks": options.get("s_aux") is not None,
    }
    for fault in (fault for fault, found in faults.items() if found):
        raise InputError(f"the model's attention has {fault}", where="model", fix="use engine=verl for this model")


def _attend_slots(query: Tensor, key: Tensor, value: Tensor, layout: SlotLayout, scaling: float | None) -> Tensor:
    """Heads that share keys are queries of one head here, so that keys are read as they lie."""
    rows, heads, _, width = query.shape
    shared = query.view(rows, key.shape[1], -1, width)
    if query.is_cuda:
        out = scaled_dot_product_attention(shared, key, value, attn_mask=layout.bias_R11S, scale=scaling)
    else:
        # For a few queries a row, torch's fused kernel takes two to ten times as long on a CPU as the plain products.
        scale = width**-0.5 if scaling is None else scaling
        out = torch.softmax((shared * scale) @ key.transpose(-1, -2) + layout.bias_R11S, dim=-1) @ value
    return out.reshape(rows, 1, heads, width)


def _attend_groups(
    query: Tensor, key: Tensor, value: Tensor, layout: PackLayout, scaling: float | None
) -> Iterator[Tensor]:
    """Each group's prompt and responses in turn, as (1, tokens, H, d)."""
    # Split once: the gradient of a slice is a tensor as large as what it was cut from.
    parts = zip(*(torch.split(tensor, layout.sizes, dim=2) for tensor in (query, key, value)), strict=True)
    for placed in layout.placed:
        prompt, responses = _Heads(*next(parts)), _Heads(*next(parts))
        if placed.group.prompt_length:
            yield _attend_prompt(prompt, scaling)
        if placed.longest:
            yield _attend_responses(prompt, responses, placed, scaling)


def _attend_prompt(prompt: "_Heads", scaling: float | None) -> Tensor:
    out = scaled_dot_product_attention(
        prompt.query, prompt.key, prompt.value, is_causal=True, scale=scaling, enable_gqa=prompt.repeats > 1
    )
    return out.transpose(1, 2)


def _attend_responses(prompt: "_Heads", responses: "_Heads", placed: _PlacedGroup, scaling: float | None) -> Tensor:
    heads, width = prompt.query.shape[1], prompt.query.shape[-1]
    queries, own_keys, own_values = (placed.rectangle(tensor) for tensor in responses)
    keys, values = (
        torch.cat([shared.expand(placed.rows, -1, -1, -1), own], dim=2)
        for shared, own in ((prompt.key, own_keys), (prompt.value, own_values))
    )
    # Heads that share keys become more queries of one head: no copy of the keys.
    queries = queries.reshape(placed.rows, keys.shape[1], prompt.repeats * placed.longest, width)
    bias = placed.bias(prompt.repeats, queries.dtype)
    out = scaled_dot_product_attention(queries, keys, values, attn_mask=bias, scale=scaling)
    out = out.reshape(placed.rows, heads, placed.longest, width).transpose(1, 2)
    out = out.reshape(1, placed.rows * placed.longest, heads, width)
    return out[:, placed.kept] if placed.ragged else out


class _Heads(NamedTuple):
    """(1, heads, tokens, d) each; several heads of queries may share one of keys."""

    query: Tensor
    key: Tensor
    value: Tensor

    @property
    def repeats(self) -> int:
        return self.query.shape[1] // self.key.shape[1]


AttentionInterface.register(NAME, attend)
