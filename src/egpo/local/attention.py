"""Attention over the two shapes that the engine feeds a model, registered with transformers under one name.

A *pack* is groups side by side, each a prompt and the responses that share it: the prompt attends to itself, a response
to its prompt and to itself. *Slots* are rows that each hold a sequence from slot 0 on, and get one more token.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
    def placed(self) -> "tuple[_PlacedGroup, ...]":
        """What every layer needs of a group, made once a pack."""
        return tuple(_PlacedGroup(group, self.device) for group in self.groups)


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
    _require_plain(options, key.shape[-2])
    if layout is None:
        raise InputError(
            f"{type(module).__name__} hands its attention nothing of what the engine gave the model",
            where="model",
            fix="use a causal language model whose layers pass keyword arguments on, such as Qwen3 or Llama",
        )
    if isinstance(layout, SlotLayout):
        return _attend_slots(query, key, value, layout, scaling), None
    return torch.cat(list(_attend_pack(query, key, value, layout, scaling)), dim=1), None


def _require_plain(options: dict[str, Any], num_keys: int) -> None:
    """Kinds of attention that neither shape computes."""
    window = options.get("sliding_window")
    faults = {
        f"a sliding window of {window} tokens": window is not None and window < num_keys,
        "capped scores": options.get("softcap") is not None,
        "attention sinks": options.get("s_aux") is not None,
    }
    for fault in (fault for fault, found in faults.items() if found):
        raise InputError(f"the model's attention has {fault}", where="model", fix="use engine=verl for this model")


def _attend_slots(query: Tensor, key: Tensor, value: Tensor, layout: SlotLayout, scaling: float | None) -> Tensor:
    """Heads that share keys are queries of one head here, so that keys are read as they lie."""
    rows, heads, _, width = query.shape
    shared = query.view(rows, key.shape[1], -1, width)
    out = scaled_dot_product_attention(shared, key, value, attn_mask=layout.bias_R11S, scale=scaling)
    return out.reshape(rows, 1, heads, width)


def _attend_pack(
    query: Tensor, key: Tensor, value: Tensor, layout: PackLayout, scaling: float | None
) -> Iterator[Tensor]:
    """Each group's prompt and responses in turn, as (1, tokens, H, d)."""
    repeats = query.shape[1] // key.shape[1]
    for placed in layout.placed:
        group = placed.group
        q, k, v = (tensor[:, :, group.start : group.responses_start] for tensor in (query, key, value))
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=repeats > 1)
        yield out.transpose(1, 2)
        if group.longest:
            yield _attend_responses(query, key, value, placed, scaling)


def _attend_responses(query: Tensor, key: Tensor, value: Tensor, placed: _PlacedGroup, scaling: float | None) -> Tensor:
    group, heads, width = placed.group, query.shape[1], query.shape[-1]
    repeats = heads // key.shape[1]
    query_GHTd, *own = (_rectangle(tensor, placed) for tensor in (query, key, value))
    prompt = slice(group.start, group.responses_start)
    keys, values = (
        torch.cat([shared[:, :, prompt].expand(placed.rows, -1, -1, -1), part], dim=2)
        for shared, part in zip((key, value), own, strict=True)
    )
    # Heads that share keys become more queries of one head: no copy of the keys.
    queries = query_GHTd.reshape(placed.rows, key.shape[1], repeats * placed.longest, width)
    out = scaled_dot_product_attention(
        queries, keys, values, attn_mask=placed.bias(repeats, query.dtype), scale=scaling
    )
    out = out.reshape(placed.rows, heads, placed.longest, width).transpose(1, 2)
    out = out.reshape(1, placed.rows * placed.longest, heads, width)
    return out[:, placed.kept] if placed.ragged else out


def _rectangle(tensor: Tensor, placed: _PlacedGroup) -> Tensor:
    """(1, H, N, d) to (rows, H, longest, d)."""
    group = placed.group
    part = tensor[0, :, group.responses_start : group.end]
    if placed.ragged:
        part = part.index_select(1, placed.index)
    return part.view(part.shape[0], placed.rows, placed.longest, -1).transpose(0, 1)


AttentionInterface.register(NAME, attend)
