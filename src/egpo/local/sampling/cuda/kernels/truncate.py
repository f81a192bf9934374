"""Top-k, top-p and min-p on a GPU without sorting. Tensor suffixes: R rows, V vocabulary.

A search finds, for each row, the highest probability p such that the words with probability p or more reach a given
count (top-k) or share of the total (top-p). Non-negative floats have the same order as their bits, read as integers,
and every pass over the row finds two bits of p. A word is an entry of the vocabulary.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from egpo.local.sampling.choose import WHOLE, Sampling

_BLOCK, _WARPS = 2048, 16
# A probability has 30 bits, because it is less than 2.
_PASSES = tl.constexpr(15)
_FLOAT_WHOLE = tl.constexpr(float(WHOLE))


@triton.jit
def _load(row, start, num_words, BLOCK: tl.constexpr):
    """Return a block's probabilities and their bits; past the end of the row, both are negative."""
    word = start + tl.arange(0, BLOCK)
    probability = tl.load(row + word, mask=word < num_words, other=-1.0)
    return probability, probability.to(tl.int32, bitcast=True)


@triton.jit
def _amounts(probability, unit, COUNT: tl.constexpr):
    """Return what each word adds to a sum: 1 (COUNT), or its probability as an integer, which sums exactly."""
    return tl.full(probability.shape, 1, tl.int64) if COUNT else (probability.to(tl.float64) * unit).to(tl.int64)


@triton.jit
def _value_that_reaches(goal, row, num_words, floor, unit, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Return the bits of the highest probability such that the words with this probability or more reach the goal.

    Return 0 if all words together do not reach it. Words below `floor` (bits too) are not counted.
    """
    value = tl.full((), 0, tl.int32)
    step = tl.full((), 1 << 28, tl.int32)
    for _ in range(_PASSES):
        first, second, third = tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.int64)
        for start in range(0, num_words, BLOCK):
            probability, bits = _load(row, start, num_words, BLOCK)
            amount = _amounts(probability, unit, COUNT)
            first += tl.where(bits >= tl.maximum(value + step, floor), amount, 0)
            second += tl.where(bits >= tl.maximum(value + 2 * step, floor), amount, 0)
            third += tl.where(bits >= tl.maximum(value + 3 * step, floor), amount, 0)
        reached = (tl.sum(first, 0) >= goal).to(tl.int32) + (tl.sum(second, 0) >= goal) + (tl.sum(third, 0) >= goal)
        value += reached * step
        step = step // 4
    return value


@triton.jit
def _above_and_equal(value, row, num_words, unit, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Return the sum over the words with a probability above `value` (bits), and the number of words equal to it."""
    above, equal = tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.int64)
    for start in range(0, num_words, BLOCK):
        probability, bits = _load(row, start, num_words, BLOCK)
        above += tl.where(bits > value, _amounts(probability, unit, COUNT), 0)
        equal += (bits == value).to(tl.int64)
    return tl.sum(above, 0), tl.sum(equal, 0)


@triton.jit
def _mass_above(value, row, num_words, BLOCK: tl.constexpr):
    mass = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, num_words, BLOCK):
        probability, bits = _load(row, start, num_words, BLOCK)
        mass += tl.where(bits > value, probability, 0.0).to(tl.float64)
    return tl.sum(mass, 0)


@triton.jit
def _highest(row, num_words, BLOCK: tl.constexpr):
    highest = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, num_words, BLOCK):
        probability, _ = _load(row, start, num_words, BLOCK)
        highest = tl.maximum(highest, probability)
    return tl.max(highest, 0)


@triton.jit
def _top_k_border(top_k, row, num_words, BLOCK: tl.constexpr):
    """Return the cut-off of top-k sampling as `lowest`, `spare`, `equal`.

    `lowest` is the probability (its bits) of the k-th most probable token of the vocabulary, and `equal` tokens have
    exactly this probability. All tokens above it are kept, and the first `spare` of those equal to it.
    """
    lowest = _value_that_reaches(top_k, row, num_words, 0, 1.0, True, BLOCK)
    above, equal = _above_and_equal(lowest, row, num_words, 1.0, True, BLOCK)
    return lowest, top_k - above, equal


@triton.jit
def _top_p_border(goal, lowest, spare, equal, row, num_words, BLOCK: tl.constexpr):
    """Return the cut-off of top-p sampling among the tokens that a first cut-off keeps.

    `lowest`, `spare` and `equal` describe a cut-off as `_top_k_border` returns it. The new one keeps the fewest most
    probable of those tokens whose share of their total probability is at least `goal` (in units of `_FLOAT_WHOLE`).
    """
    border = tl.maximum(lowest, 0).to(tl.float32, bitcast=True).to(tl.float64)
    mass = _mass_above(lowest, row, num_words, BLOCK) + border * tl.minimum(spare, equal).to(tl.float64)
    unit = _FLOAT_WHOLE / tl.maximum(mass, 1e-200)
    value = tl.maximum(_value_that_reaches(goal, row, num_words, lowest + 1, unit, False, BLOCK), lowest)
    above, equal = _above_and_equal(value, row, num_words, unit, False, BLOCK)
    share = (value.to(tl.float32, bitcast=True).to(tl.float64) * unit).to(tl.int64)
    missing = tl.cdiv(goal - above, tl.maximum(share, 1))
    return value, tl.where(value == lowest, tl.minimum(spare, missing), missing), equal


@triton.jit
def _leave_out(logit, row, num_words, lowest, spare, equal, least, BLOCK: tl.constexpr):
    """Set the logits of words beyond the border, or with probabilities below `least`, to -inf.

    Return the total probability of the words that are kept.
    """
    seen, held = tl.full((), 0, tl.int64), tl.zeros((BLOCK,), tl.float64)
    for start in range(0, num_words, BLOCK):
        word = start + tl.arange(0, BLOCK)
        probability, bits = _load(row, start, num_words, BLOCK)
        tied = bits == lowest
        if equal > spare:
            rank = seen + tl.cumsum(tied.to(tl.int32), 0)
            seen += tl.sum(tied.to(tl.int64), 0)
            tied = tied & (rank <= spare)
        kept = ((bits > lowest) | tied) & (probability >= least)
        tl.store(logit + word, float("-inf"), mask=(word < num_words) & (kept == 0))
        held += tl.where(kept, probability, 0.0).to(tl.float64)
    return tl.sum(held, 0)


@triton.jit
def _truncate_kernel(
    logit, probability, held, num_words, top_k, goal, min_p,
    TOP_K: tl.constexpr, TOP_P: tl.constexpr, MIN_P: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    row = probability + index * num_words
    lowest, spare, equal = tl.full((), -1, tl.int32), tl.full((), 0, tl.int64), tl.full((), 0, tl.int64)
    least = tl.full((), 0.0, tl.float32)
    if TOP_K:
        lowest, spare, equal = _top_k_border(top_k, row, num_words, BLOCK)
    if TOP_P:
        lowest, spare, equal = _top_p_border(goal, lowest, spare, equal, row, num_words, BLOCK)
    if MIN_P:
        least = min_p * _highest(row, num_words, BLOCK)
    total = _leave_out(logit + index * num_words, row, num_words, lowest, spare, equal, least, BLOCK)
    tl.store(held + index, total.to(tl.float32))


def truncate_logits(logits_RV: Tensor, probability_RV: Tensor, sampling: Sampling) -> Tensor:
    """Set the logits of all words that `choose.kept_tokens` drops to -inf, in place.

    Return the total probability of the kept words (R,).
    """
    rows, num_words = logits_RV.shape
    held_R = torch.empty(rows, device=logits_RV.device)
    _truncate_kernel[(rows,)](
        logits_RV, probability_RV, held_R, num_words, sampling.top_k, math.ceil(sampling.top_p * WHOLE), sampling.min_p,
        TOP_K=sampling.top_k > 0, TOP_P=sampling.top_p < 1, MIN_P=sampling.min_p > 0,
        BLOCK=min(_BLOCK, triton.next_power_of_2(num_words)), num_warps=_WARPS,
    )  # fmt: skip
    return held_R
