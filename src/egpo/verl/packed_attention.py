"""Attention over packed sequences without flash-attn, registered with transformers under the name `egpo_packed`.

Without padding (`use_remove_padding`), verl puts the sequences of a pass one after another into one row, in which the
positions of each sequence begin at 0. transformers' `sdpa` would compute a mask of all tokens by all tokens. Here
sequences of similar length are copied into a rectangle, where causal attention needs no mask: no token sees what
follows it. All other layers compute the tokens alone. `plugin.py` registers both functions by transformers' own
interfaces.

Tensor suffixes: N tokens of all sequences, R sequences of a rectangle, L tokens of its longest one, H heads of queries
or keys, d the width of a head.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from egpo.errors import InputError
from egpo.support import PACKED_ATTENTION, unsupported_attention

MOST_PADDING = 2
"""In a rectangle, the longest sequence has at most this many times the tokens of the shortest."""


@dataclass(frozen=True, eq=False)
class Rectangle:
    """Where some sequences lie: their tokens in the row, and the same tokens in a rectangle of rows by longest."""

    tokens_N: Tensor
    slots_N: Tensor
    rows: int
    longest: int

    def fill(self, value_NHd: Tensor) -> Tensor:
        """Return the tokens of the sequences as (R, H, L, d), with zeros after the end of each."""
        _, heads, width = value_NHd.shape
        empty = value_NHd.new_zeros(self.rows * self.longest, heads, width)
        filled = empty.index_copy(0, self.slots_N, value_NHd.index_select(0, self.tokens_N))
        return filled.view(self.rows, self.longest, heads, width).transpose(1, 2)

    def tokens(self, value_RHLd: Tensor) -> Tensor:
        """Return the tokens of the sequences as (N, H, d), in the order of `tokens_N`."""
        value_RLHd = value_RHLd.transpose(1, 2)
        return value_RLHd.reshape(self.rows * self.longest, *value_RLHd.shape[2:]).index_select(0, self.slots_N)


@dataclass(frozen=True, eq=False)
class PackedLayout:
    """The sequences of a row, in rectangles. `place_N`: where each token is among the tokens of all rectangles."""

    rectangles: tuple[Rectangle, ...]
    place_N: Tensor
    longest: int


def layout_of(position_1N: Tensor) -> PackedLayout:
    """Return the layout of the sequences in a row. Within a sequence, positions rise by 1."""
    position_N = position_1N[0]
    starts = (torch.diff(position_N) != 1).nonzero().flatten().add(1).tolist()
    ends = [*starts, len(position_N)]
    spans = sorted(zip([0, *starts], ends, strict=True), key=lambda span: span[0] - span[1])  # the longest first
    rectangles = tuple(_rectangle(group, position_N.device) for group in _groups(spans))
    tokens_N = torch.cat([one.tokens_N for one in rectangles])
    return PackedLayout(rectangles, torch.argsort(tokens_N), spans[0][1] - spans[0][0])


def _groups(spans: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    group: list[tuple[int, int]] = []
    for start, end in spans:
        if group and MOST_PADDING * (end - start) < group[0][1] - group[0][0]:
            yield group
            group = []
        group.append((start, end))
    yield group


def _rectangle(spans: list[tuple[int, int]], device: torch.device) -> Rectangle:
    longest = spans[0][1] - spans[0][0]
    tokens = [torch.arange(start, end) for start, end in spans]
    slots = [torch.arange(end - start) + row * longest for row, (start, end) in enumerate(spans)]
    return Rectangle(torch.cat(tokens).to(device), torch.cat(slots).to(device), len(spans), longest)


_FIX = "install flash-attn, or set attn_implementation=sdpa and use_remove_padding=false"
_latest: tuple[Any, PackedLayout] | None = None
"""The layout for the latest positions, which all layers of a pass share. Computing it waits for the device."""


def _layout_of_pass(position_1N: Tensor) -> PackedLayout:
    global _latest
    known = _latest
    if known is None or known[0]() is not position_1N:
        _latest = known = ref(position_1N), layout_of(position_1N)
    return known[1]


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    position_ids: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention for transformers: (rows, H, N, d) to (rows, N, H, d). Rows with a mask, or several rows, are
    not packed, and go to transformers' `sdpa`."""
    packed = attention_mask is None and len(query) == 1 and query.shape == (*query.shape[:2], *key.shape[2:])
    if not packed or position_ids is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **options)  # type: ignore[no-any-return]
    if position_ids.shape != (1, query.shape[2]):
        what = f"{PACKED_ATTENTION} needs one position per token; these have the shape {tuple(position_ids.shape)}"
        raise InputError(what, where="attention", fix=_FIX)
    layout = _layout_of_pass(position_ids)
    _require_supported(options, layout)
    # torch's kernels for float32 on a GPU do not share keys among heads of queries.
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1 and query.is_cuda and query.dtype == torch.float32:
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    query_NHd, key_NHd, value_NHd = (one[0].transpose(0, 1) for one in (query, key, value))
    parts = [
        one.tokens(
            scaled_dot_product_attention(
                one.fill(query_NHd), one.fill(key_NHd), one.fill(value_NHd),
                is_causal=True, scale=scaling, dropout_p=dropout, enable_gqa=key.shape[1] < query.shape[1],
            )
        )
        for one in layout.rectangles
    ]  # fmt: skip
    return torch.cat(parts).index_select(0, layout.place_N).unsqueeze(0), None


def mask_of(**request: Any) -> Any:
    """Return None where attention is causal and nothing is masked, as in packed rows; else transformers' mask."""
    plain = request.get("q_length") == request.get("kv_length") and not request.get("q_offset")
    if request.get("attention_mask") is None and plain:
        return None
    from transformers.masking_utils import sdpa_mask

    return sdpa_mask(**request)


def _require_supported(options: dict[str, Any], layout: PackedLayout) -> None:
    faults = [*unsupported_attention(options, layout.longest)]
    ulysses = sys.modules.get("verl.utils.ulysses")
    if ulysses is not None and ulysses.get_ulysses_sequence_parallel_world_size() > 1:
        faults.append("sequences that are divided among GPUs (ulysses_sequence_parallel_size)")
    if faults:
        raise InputError(f"{PACKED_ATTENTION} does not compute {' and '.join(faults)}", where="attention", fix=_FIX)


def register_attention(modeling_utils: ModuleType) -> None:
    """Register both functions with transformers, whose module of models has just been imported."""
    from transformers.masking_utils import AttentionMaskInterface

    modeling_utils.AttentionInterface.register(PACKED_ATTENTION, attend)
    AttentionMaskInterface.register(PACKED_ATTENTION, mask_of)
