"""From a joint projection to heads: norms of queries and keys (Qwen3), rotary positions, and the split; with gradients.

Tensor suffixes: N tokens, R rows, H heads of queries, K heads of keys and as many of values, A = H + 2 K heads in all,
d the width of a head, h = d / 2. One program computes all heads of a token: first queries, then keys, then values. A
head is held as two halves, which the rotation turns: (one, two) becomes (one c - two s, two c + one s). The tables of
cosines and sines have a row for each position; both halves of a row are equal.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable


@triton.jit
def split_kernel(
    joint, query, key, value, cos, sin, position, query_weight, key_weight, eps,
    slot, place, live, num_slots,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, HALF: tl.constexpr, NORMS: tl.constexpr, CACHES: tl.constexpr,
    BLOCK_A: tl.constexpr, BLOCK_h: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, BLOCK_A)[:, None]
    column = tl.arange(0, BLOCK_h)[None, :]
    inside = (head < QUERIES + 2 * KEYS) & (column < HALF)
    source = joint + (row * (QUERIES + 2 * KEYS) + head) * 2 * HALF + column
    one = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    two = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    dtype = query.dtype.element_ty
    plain_one, plain_two = one, two
    if NORMS:
        inverse = tl.rsqrt((tl.sum(one * one, 1) + tl.sum(two * two, 1)) / (2 * HALF) + eps)[:, None]
        is_query = (head < QUERIES) & (column < HALF)
        is_key = (head >= QUERIES) & (column < HALF)
        weight = tl.load(query_weight + column, mask=is_query, other=0.0).to(tl.float32)
        weight += tl.load(key_weight + column, mask=is_key, other=0.0).to(tl.float32)
        one = ((one * inverse).to(dtype).to(tl.float32) * weight).to(dtype).to(tl.float32)
        weight = tl.load(query_weight + HALF + column, mask=is_query, other=0.0).to(tl.float32)
        weight += tl.load(key_weight + HALF + column, mask=is_key, other=0.0).to(tl.float32)
        two = ((two * inverse).to(dtype).to(tl.float32) * weight).to(dtype).to(tl.float32)
    angle = tl.load(position + row) * 2 * HALF + column
    c = tl.load(cos + angle, mask=column < HALF, other=0.0).to(tl.float32)
    s = tl.load(sin + angle, mask=column < HALF, other=0.0).to(tl.float32)
    turned_one = (one * c - two * s).to(dtype)
    turned_two = (two * c + one * s).to(dtype)
    out = query + (row * QUERIES + head) * 2 * HALF + column
    mask = inside & (head < QUERIES)
    tl.store(out, turned_one, mask=mask)
    tl.store(out + HALF, turned_two, mask=mask)
    # Keys and values are stored side by side, or at the row's place in the cache (slots, K, num_slots, d).
    if CACHES:
        first = tl.load(slot + row).to(tl.int64) * KEYS
        here = tl.load(place + row)
        inside = inside & (tl.load(live + row) != 0)
        key_at = ((first + head - QUERIES) * num_slots + here) * 2 * HALF + column
        value_at = ((first + head - QUERIES - KEYS) * num_slots + here) * 2 * HALF + column
    else:
        key_at = (row * KEYS + head - QUERIES) * 2 * HALF + column
        value_at = (row * KEYS + head - QUERIES - KEYS) * 2 * HALF + column
    mask = inside & (head >= QUERIES) & (head < QUERIES + KEYS)
    tl.store(key + key_at, turned_one, mask=mask)
    tl.store(key + key_at + HALF, turned_two, mask=mask)
    mask = inside & (head >= QUERIES + KEYS)
    tl.store(value + value_at, plain_one.to(dtype), mask=mask)
    tl.store(value + value_at + HALF, plain_two.to(dtype), mask=mask)


@triton.jit
def join_kernel(
    query_grad, key_grad, value_grad, joint, joint_grad, cos, sin, position, query_weight, key_weight, eps,
    weight_parts, rows,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, HALF: tl.constexpr, NORMS: tl.constexpr,
    BLOCK_A: tl.constexpr, BLOCK_h: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    head = tl.arange(0, BLOCK_A)[:, None]
    column = tl.arange(0, BLOCK_h)[None, :]
    inside = (head < QUERIES + 2 * KEYS) & (column < HALF)
    is_query = (head < QUERIES) & (column < HALF)
    is_key = (head >= QUERIES) & (head < QUERIES + KEYS) & (column < HALF)
    is_value = (head >= QUERIES + KEYS) & inside
    weight_one = tl.zeros([BLOCK_A, BLOCK_h], tl.float32)
    weight_two = tl.zeros([BLOCK_A, BLOCK_h], tl.float32)
    sum_one = tl.zeros([BLOCK_A, BLOCK_h], tl.float32)
    sum_two = tl.zeros([BLOCK_A, BLOCK_h], tl.float32)
    if NORMS:
        weight_one += tl.load(query_weight + column, mask=is_query, other=0.0).to(tl.float32)
        weight_one += tl.load(key_weight + column, mask=is_key, other=0.0).to(tl.float32)
        weight_two += tl.load(query_weight + HALF + column, mask=is_query, other=0.0).to(tl.float32)
        weight_two += tl.load(key_weight + HALF + column, mask=is_key, other=0.0).to(tl.float32)
    for index in range(part, rows, tl.num_programs(0)):
        row = tl.cast(index, tl.int64)
        at = query_grad + (row * QUERIES + head) * 2 * HALF + column
        one = tl.load(at, mask=is_query, other=0.0).to(tl.float32)
        two = tl.load(at + HALF, mask=is_query, other=0.0).to(tl.float32)
        at = key_grad + (row * KEYS + head - QUERIES) * 2 * HALF + column
        one += tl.load(at, mask=is_key, other=0.0).to(tl.float32)
        two += tl.load(at + HALF, mask=is_key, other=0.0).to(tl.float32)
        angle = tl.load(position + row) * 2 * HALF + column
        c = tl.load(cos + angle, mask=column < HALF, other=0.0).to(tl.float32)
        s = tl.load(sin + angle, mask=column < HALF, other=0.0).to(tl.float32)
        back_one = one * c + two * s
        back_two = two * c - one * s
        place = (row * (QUERIES + 2 * KEYS) + head) * 2 * HALF + column
        if NORMS:
            unit_one = tl.load(joint + place, mask=inside, other=0.0).to(tl.float32)
            unit_two = tl.load(joint + place + HALF, mask=inside, other=0.0).to(tl.float32)
            square = tl.sum(unit_one * unit_one, 1) + tl.sum(unit_two * unit_two, 1)
            inverse = tl.rsqrt(square / (2 * HALF) + eps)[:, None]
            unit_one = unit_one * inverse
            unit_two = unit_two * inverse
            sum_one += back_one * unit_one
            sum_two += back_two * unit_two
            back_one = back_one * weight_one
            back_two = back_two * weight_two
            along = tl.sum(back_one * unit_one, 1) + tl.sum(back_two * unit_two, 1)
            mean = along[:, None] / (2 * HALF)
            back_one = (back_one - unit_one * mean) * inverse
            back_two = (back_two - unit_two * mean) * inverse
        at = value_grad + (row * KEYS + head - QUERIES - KEYS) * 2 * HALF + column
        back_one = tl.where(is_value, tl.load(at, mask=is_value, other=0.0).to(tl.float32), back_one)
        back_two = tl.where(is_value, tl.load(at + HALF, mask=is_value, other=0.0).to(tl.float32), back_two)
        tl.store(joint_grad + place, back_one.to(joint_grad.dtype.element_ty), mask=inside)
        tl.store(joint_grad + place + HALF, back_two.to(joint_grad.dtype.element_ty), mask=inside)
    if NORMS:
        at = weight_parts + part * 4 * HALF + tl.arange(0, BLOCK_h)
        mask = tl.arange(0, BLOCK_h) < HALF
        tl.store(at, tl.sum(tl.where(is_query, sum_one, 0.0), 0), mask=mask)
        tl.store(at + HALF, tl.sum(tl.where(is_query, sum_two, 0.0), 0), mask=mask)
        tl.store(at + 2 * HALF, tl.sum(tl.where(is_key, sum_one, 0.0), 0), mask=mask)
        tl.store(at + 3 * HALF, tl.sum(tl.where(is_key, sum_two, 0.0), 0), mask=mask)


_PARTS = 528
"""Number of partial sums of the norms' gradients: a few programs for each multiprocessor."""


@dataclass(frozen=True, eq=False)
class Rotation:
    """Tables of cosines and sines (positions, d), and the position of each token."""

    cos: Tensor
    sin: Tensor
    position_N: Tensor


@dataclass(frozen=True, eq=False)
class HeadNorms:
    """Weights (d,) of the RMS norms of query heads and key heads."""

    query_d: Tensor
    key_d: Tensor
    eps: float


@dataclass(frozen=True)
class HeadShape:
    """Numbers of query heads and key heads, and the width of a head."""

    queries: int
    keys: int
    width: int

    @property
    def total(self) -> int:
        return self.queries + 2 * self.keys

    def constants(self) -> dict[str, int]:
        half = self.width // 2
        blocks = {"BLOCK_A": triton.next_power_of_2(self.total), "BLOCK_h": triton.next_power_of_2(half)}
        return {"QUERIES": self.queries, "KEYS": self.keys, "HALF": half, **blocks}


def split_heads(
    joint_NA: Tensor, shape: HeadShape, rotation: Rotation, norms: HeadNorms | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries (N, H, d), keys and values (N, K, d) of a joint projection (N, A * d)."""
    query_d, key_d, eps = (norms.query_d, norms.key_d, norms.eps) if norms else (None, None, 0.0)
    apply: Any = _SplitHeads.apply
    return apply(joint_NA, query_d, key_d, eps, shape, rotation)


class _SplitHeads(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, joint_NA: Tensor, query_d: Tensor | None, key_d: Tensor | None, eps: float, shape: HeadShape,
        rotation: Rotation,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        rows = len(joint_NA)
        query, key, value = (
            joint_NA.new_empty(rows, heads, shape.width) for heads in (shape.queries, shape.keys, shape.keys)
        )
        weights = (joint_NA, joint_NA) if query_d is None else (query_d, key_d)
        split_kernel[(rows,)](
            joint_NA, query, key, value, rotation.cos, rotation.sin, rotation.position_N, *weights, eps,
            rotation.position_N, rotation.position_N, rotation.position_N, 0,
            NORMS=query_d is not None, CACHES=False, **shape.constants(),
        )  # fmt: skip
        ctx.save_for_backward(joint_NA, query_d, key_d, rotation.cos, rotation.sin, rotation.position_N)
        ctx.eps, ctx.shape = eps, shape
        return query, key, value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, query_grad: Tensor, key_grad: Tensor, value_grad: Tensor) -> Any:
        joint_NA, query_d, key_d, cos, sin, position_N = ctx.saved_tensors
        rows, norms = len(joint_NA), query_d is not None
        parts = min(rows, _PARTS)
        joint_grad = torch.empty_like(joint_NA)
        weight_parts = torch.empty(parts, 2, ctx.shape.width, device=joint_NA.device)
        weights = (query_d, key_d) if norms else (joint_NA, joint_NA)
        join_kernel[(parts,)](
            query_grad.contiguous(), key_grad.contiguous(), value_grad.contiguous(), joint_NA, joint_grad,
            cos, sin, position_N, *weights, ctx.eps, weight_parts, rows,
            NORMS=norms, num_warps=8, **ctx.shape.constants(),
        )  # fmt: skip
        if not norms:
            return joint_grad, None, None, None, None, None
        query_sum, key_sum = weight_parts.sum(0).to(query_d.dtype)
        return joint_grad, query_sum, key_sum, None, None, None


@dataclass(frozen=True, eq=False)
class CachePlaces:
    """The cache slot and the index in it at which each row's new token is stored; not used if `live_R` is 0."""

    slot_R: Tensor
    place_R: Tensor
    live_R: Tensor


def split_heads_into(
    cache: tuple[Tensor, Tensor], joint_RA: Tensor, shape: HeadShape, rotation: Rotation, norms: HeadNorms | None,
    places: CachePlaces,
) -> Tensor:  # fmt: skip
    """Return queries (R, H, d), and store keys and values at their places in the cache (slots, K, num_slots, d)."""
    keys, values = cache
    query = joint_RA.new_empty(len(joint_RA), shape.queries, shape.width)
    weights = (norms.query_d, norms.key_d, norms.eps) if norms else (joint_RA, joint_RA, 0.0)
    split_kernel[(len(joint_RA),)](
        joint_RA, query, keys, values, rotation.cos, rotation.sin, rotation.position_N, *weights,
        places.slot_R, places.place_R, places.live_R, keys.shape[2],
        NORMS=norms is not None, CACHES=True, **shape.constants(),
    )  # fmt: skip
    return query
