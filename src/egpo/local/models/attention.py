"""Attention through torch over packs and over rows of cache slots, registered with transformers under one name.

Tensor suffixes: N tokens of a pack, R rows, S slots, H heads of queries, K heads of keys, d the width of a head. Models
without layers of the engine's own call `attend` from their transformers layers. A pack is described in `packs`; a row
of slots is one sequence from slot 0 on, which gets one more token.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from egpo.errors import InputError
from egpo.local.models.packs import GroupRectangle, PackLayout
from egpo.support import unsupported_attention

ATTENTION_NAME = "egpo"
"""The name in a model's `_attn_implementation`. transformers builds no mask for a name that it does not define."""


@dataclass(frozen=True, eq=False)
class SlotLayout:
    """The bias of attention scores over cache slots: 0 for the filled slots of a row, minus infinity for the others."""

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
    """Compute attention for transformers: (1, H, N, d) of a pack to (1, N, H, d), or (R, H, 1, d) to (R, 1, H, d)."""
    if layout is None:
        raise InputError(
            f"{type(module).__name__} does not pass the engine's keyword arguments on to its attention",
            where="model",
            fix="use a causal language model whose layers pass keyword arguments on, such as Qwen3 or Llama",
        )
    _require_plain(options, layout.longest if isinstance(layout, PackLayout) else key.shape[-2])
    if isinstance(layout, SlotLayout):
        return _attend_slots(query, key, value, layout, scaling), None
    return attend_pack(query, key, value, layout, scaling), None


def attend_pack(query: Tensor, key: Tensor, value: Tensor, layout: PackLayout, scaling: float | None) -> Tensor:
    """Return the attention over a pack (1, N, H, d), from queries, keys and values (1, heads, N, d)."""
    return torch.cat(list(_attend_groups(query, key, value, layout, scaling)), dim=1)


def _require_plain(options: dict[str, Any], longest: int) -> None:
    for fault in unsupported_attention(options, longest):
        raise InputError(f"the model's attention has {fault}", where="model", fix="use engine=verl for this model")


def _attend_slots(query: Tensor, key: Tensor, value: Tensor, layout: SlotLayout, scaling: float | None) -> Tensor:
    """Compute attention over cache slots. Query heads that share keys become queries of one head: no copy of keys."""
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
    """Yield the output of each group's prompt, then of its responses, as (1, tokens, H, d)."""
    # Split once: the gradient of a slice is a tensor as large as the whole.
    parts = zip(*(torch.split(tensor, layout.sizes, dim=2) for tensor in (query, key, value)), strict=True)
    for rectangle in layout.rectangles:
        prompt, responses = _Heads(*next(parts)), _Heads(*next(parts))
        if rectangle.group.prompt_length:
            yield _attend_prompt(prompt, scaling)
        if rectangle.longest:
            yield _attend_responses(prompt, responses, rectangle, scaling)


def _attend_prompt(prompt: "_Heads", scaling: float | None) -> Tensor:
    out = scaled_dot_product_attention(
        prompt.query, prompt.key, prompt.value, is_causal=True, scale=scaling, enable_gqa=prompt.repeats > 1
    )
    return out.transpose(1, 2)


def _attend_responses(
    prompt: "_Heads", responses: "_Heads", rectangle: GroupRectangle, scaling: float | None
) -> Tensor:
    heads, width = prompt.query.shape[1], prompt.query.shape[-1]
    queries, own_keys, own_values = (rectangle.fill(tensor) for tensor in responses)
    keys, values = (
        torch.cat([shared.expand(rectangle.rows, -1, -1, -1), own], dim=2)
        for shared, own in ((prompt.key, own_keys), (prompt.value, own_values))
    )
    # Query heads that share keys become several queries of one head: no copy of the keys.
    queries = queries.reshape(rectangle.rows, keys.shape[1], prompt.repeats * rectangle.longest, width)
    bias = rectangle.bias(prompt.repeats, queries.dtype)
    out = scaled_dot_product_attention(queries, keys, values, attn_mask=bias, scale=scaling)
    out = out.reshape(rectangle.rows, heads, rectangle.longest, width).transpose(1, 2)
    out = out.reshape(1, rectangle.rows * rectangle.longest, heads, width)
    return out[:, rectangle.kept] if rectangle.ragged else out


class _Heads(NamedTuple):
    """Queries, keys and values of shape (1, heads, tokens, d). Several query heads may share one head of keys."""

    query: Tensor
    key: Tensor
    value: Tensor

    @property
    def repeats(self) -> int:
        return self.query.shape[1] // self.key.shape[1]


AttentionInterface.register(ATTENTION_NAME, attend)
