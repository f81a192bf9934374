"""The joint projection split into heads, and the gradient joined again: one program for all heads of a token.

Each head is held as two halves, which a rotation turns against each other: (one, two) becomes (one c - two s, two c +
one s). H heads of queries come first, then K of keys, then K of values.
"""

import triton
import triton.language as tl


@triton.jit
def split_kernel(
    joint, query, key, value, cos, sin, position, query_weight, key_weight, eps,
    slot, place, live, room,
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
    # Keys and values go side by side, or into the row's place in the cache of (slots, K, room, d).
    if CACHES:
        first = tl.load(slot + row).to(tl.int64) * KEYS
        here = tl.load(place + row)
        inside = inside & (tl.load(live + row) != 0)
        key_at = ((first + head - QUERIES) * room + here) * 2 * HALF + column
        value_at = ((first + head - QUERIES - KEYS) * room + here) * 2 * HALF + column
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
