"""Attention of one new token per row, over its prompt and over the row's own tokens.

A prompt's keys are stored once for all its rows.

Tensor suffixes: R rows, P prompts, H heads of queries, K heads of keys, d the width of a head, L tokens of the longest
prompt, T new tokens. The first kernel reads a prompt's keys once for a tile of rows, and stores an unnormalised
softmax: its highest score, its sum and its weighted values. The second kernel computes the softmax over the rows' own
tokens, and then adds the first one.

Where the GPU supports it (programmatic dependent launch), the second kernel starts while the first is still running,
and waits for its results only before it adds them. What it reads before that was complete when the first kernel, an
ordinary launch, started.
"""

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK_N = 64
LOWEST = tl.constexpr(-1e30)


@triton.jit
def _keys_seen(
    q, highest, total, out, keys, values, count, first,
    WIDTH: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_d: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Merge `count` keys, stored from row `first` on, into a running softmax."""
    column = tl.arange(0, BLOCK_d)
    wide = column < WIDTH
    for start in range(0, count, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        at = (first + token)[:, None] * WIDTH + column[None, :]
        inside = (token < count)[:, None] & wide[None, :]
        k = tl.load(keys + at, mask=inside, other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        score = tl.where((token < count)[None, :], score, LOWEST)
        higher = tl.maximum(highest, tl.max(score, 1))
        weight = tl.exp(score - higher[:, None])
        scale = tl.exp(highest - higher)
        v = tl.load(values + at, mask=inside, other=0.0)
        total = total * scale + tl.sum(weight, 1)
        out = out * scale[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
        highest = higher
    return highest, total, out


@triton.jit
def _prompt_kernel(
    query, keys, values, prompt, length, tile, part_highest, part_total, part_out, scale, num_slots,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, OVERLAPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_d: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    if OVERLAPS:
        tl.extra.cuda.gdc_launch_dependents()
    row, key_head = tl.program_id(0), tl.program_id(1)
    rows = tl.load(tile + row)
    if rows == 0:
        return
    repeats: tl.constexpr = QUERIES // KEYS
    m = tl.arange(0, BLOCK_M)
    head = (row + m // repeats) * QUERIES + key_head * repeats + m % repeats
    column = tl.arange(0, BLOCK_d)
    known = m < rows * repeats
    inside = known[:, None] & (column < WIDTH)[None, :]
    q = tl.load(query + head[:, None] * WIDTH + column[None, :], mask=inside, other=0.0)
    q = (q * scale).to(query.dtype.element_ty)
    place = tl.load(prompt + row).to(tl.int64)
    highest = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, BLOCK_d], tl.float32)
    highest, total, out = _keys_seen(
        q, highest, total, out, keys, values, tl.load(length + place), (place * KEYS + key_head) * num_slots,
        WIDTH, BLOCK_N, BLOCK_d, PRECISION,
    )  # fmt: skip
    tl.store(part_highest + head, highest, mask=known)
    tl.store(part_total + head, total, mask=known)
    tl.store(part_out + head[:, None] * WIDTH + column[None, :], out, mask=inside)


@triton.jit
def _own_kernel(
    query, keys, values, slot, place, live, part_highest, part_total, part_out, result, scale, num_slots,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, OVERLAPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_d: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row, key_head = tl.program_id(0), tl.program_id(1)
    if tl.load(live + row) == 0:
        if OVERLAPS:  # the kernels after this one rely on the end of the first one, too
            tl.extra.cuda.gdc_wait()
        return
    repeats: tl.constexpr = QUERIES // KEYS
    m = tl.arange(0, BLOCK_M)
    head = row * QUERIES + key_head * repeats + m
    column = tl.arange(0, BLOCK_d)
    known = m < repeats
    inside = known[:, None] & (column < WIDTH)[None, :]
    at = head[:, None] * WIDTH + column[None, :]
    q = tl.load(query + at, mask=inside, other=0.0)
    q = (q * scale).to(query.dtype.element_ty)
    highest = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, BLOCK_d], tl.float32)
    first = (tl.load(slot + row).to(tl.int64) * KEYS + key_head) * num_slots
    highest, total, out = _keys_seen(
        q, highest, total, out, keys, values, tl.load(place + row) + 1, first, WIDTH, BLOCK_N, BLOCK_d, PRECISION
    )
    if OVERLAPS:
        tl.extra.cuda.gdc_wait()
    prompt_highest = tl.load(part_highest + head, mask=known, other=LOWEST)
    higher = tl.maximum(highest, prompt_highest)
    share, prompt_share = tl.exp(highest - higher), tl.exp(prompt_highest - higher)
    total = total * share + tl.load(part_total + head, mask=known, other=1.0) * prompt_share
    out = out * share[:, None] + tl.load(part_out + at, mask=inside, other=0.0) * prompt_share[:, None]
    tl.store(result + at, (out / total[:, None]).to(result.dtype.element_ty), mask=inside)


@dataclass(frozen=True, eq=False)
class LayerCache:
    """Keys and values of one layer: of prompts (P, K, L, d), and of rows' own tokens (slots, K, T, d)."""

    prompt_keys: Tensor
    prompt_values: Tensor
    keys: Tensor
    values: Tensor


@dataclass(frozen=True, eq=False)
class RowPlaces:
    """The prompt and the cache slot of each row.

    Row r is a response to prompt `prompt_R[r]`; its own tokens are in slot `slot_R[r]`, the newest at `place_R[r]`.
    Rows of one prompt are adjacent: a tile of `tile_R[r]` rows starts at r (0: none does). `length_P`: the prompts'
    lengths in tokens. `live_R`: 0 for rows that have ended.
    """

    prompt_R: Tensor
    length_P: Tensor
    tile_R: Tensor
    slot_R: Tensor
    place_R: Tensor
    live_R: Tensor


@dataclass(frozen=True, eq=False)
class Partial:
    """The unnormalised softmax over prompts in float32: highest score and sum (R, H), weighted values (R, H, d)."""

    highest: Tensor
    total: Tensor
    out: Tensor

    @classmethod
    def like(cls, query_RHd: Tensor) -> "Partial":
        highest, total = (torch.empty(query_RHd.shape[:2], device=query_RHd.device) for _ in range(2))
        return cls(highest, total, torch.empty(query_RHd.shape, device=query_RHd.device))


def rows_in_a_tile(repeats: int) -> int:
    """Return how many rows read a prompt's keys together: at most 16 rows, and at most 64 queries if possible.

    Each row has `repeats` queries for one head of keys.
    """
    return max(1, min(16, 64 // repeats))


def attend_new(query_RHd: Tensor, cache: LayerCache, rows: RowPlaces, scale: float) -> Tensor:
    """Return the attention of the new tokens (R, H * d). It is undefined for rows that have ended."""
    num_rows, queries, width = query_RHd.shape
    keys = cache.keys.shape[1]
    repeats = queries // keys
    part = Partial.like(query_RHd)
    out_RHd = torch.empty_like(query_RHd)
    overlaps = _overlaps(query_RHd.device)
    shape = {
        "QUERIES": queries, "KEYS": keys, "WIDTH": width, "BLOCK_N": _BLOCK_N, "OVERLAPS": overlaps,
        "BLOCK_d": max(16, triton.next_power_of_2(width)),
        "PRECISION": "ieee" if query_RHd.dtype == torch.float32 else "tf32",
    }  # fmt: skip
    tile = max(16, triton.next_power_of_2(rows_in_a_tile(repeats) * repeats))
    _prompt_kernel[(num_rows, keys)](
        query_RHd, cache.prompt_keys, cache.prompt_values, rows.prompt_R, rows.length_P, rows.tile_R,
        part.highest, part.total, part.out, scale, cache.prompt_keys.shape[2], BLOCK_M=tile, **shape,
    )  # fmt: skip
    _own_kernel[(num_rows, keys)](
        query_RHd, cache.keys, cache.values, rows.slot_R, rows.place_R, rows.live_R,
        part.highest, part.total, part.out, out_RHd, scale, cache.keys.shape[2],
        BLOCK_M=max(16, triton.next_power_of_2(repeats)), **shape, **({"launch_pdl": True} if overlaps else {}),
    )  # fmt: skip
    return out_RHd.flatten(1)


@cache
def _overlaps(device: torch.device) -> bool:
    """Return whether a kernel may start before the one in front of it has ended: from compute capability 9.0 on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
