"""Draw a token per row from logits and record it, without waiting for the host.

Tensor suffixes: R rows, V vocabulary, B rows and T tokens of the tables. `draw_tokens` needs two kernels: the first
reads the logits once and leaves three numbers per block of words; the second finds the block, then the word, and
computes log-probability and exact entropy. `record` writes to the tables and advances or ends every row.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from egpo.local.sampling.choose import Choice, ResponseTables

_BLOCK = 4096
LOWEST = tl.constexpr(-1e30)


@triton.jit
def _block_kernel(logit, highest, total, weighted, num_words, inverse_temperature, BLOCK: tl.constexpr):
    """Store three numbers for one block of words: m = max(x), sum exp(x - m), and sum exp(x - m) * (x - m).

    x is the logit of a word divided by the temperature.
    """
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    word = block * BLOCK + tl.arange(0, BLOCK)
    inside = word < num_words
    x = tl.load(logit + row * num_words + word, mask=inside, other=LOWEST) * inverse_temperature
    top = tl.maximum(tl.max(tl.where(inside, x, LOWEST), 0), LOWEST)  # also for a block in which every word is -inf
    exp = tl.where(inside, tl.exp(x - top), 0.0)
    at = row * tl.num_programs(1) + block
    tl.store(highest + at, top)
    tl.store(total + at, tl.sum(exp, 0))
    tl.store(weighted + at, tl.sum(tl.where(exp > 0, exp * (x - top), 0.0), 0))


@triton.jit
def _draw_kernel(
    logit, highest, total, weighted, uniform, token, logp, entropy, num_words, num_blocks, inverse_temperature,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)
    known = block < num_blocks
    at = row * num_blocks + block
    high = tl.load(highest + at, mask=known, other=LOWEST)
    sums = tl.load(total + at, mask=known, other=0.0)
    top = tl.max(high, 0)
    scale = tl.exp(high - top)
    whole = tl.sum(sums * scale, 0)
    weighted_sum = (tl.load(weighted + at, mask=known, other=0.0) + (high - top) * sums) * scale
    tl.store(entropy + row, tl.log(whole) - tl.sum(tl.where(known & (scale > 0), weighted_sum, 0.0), 0) / whole)
    # In float64: in float32 the rare tokens of a large vocabulary would vanish in rounding.
    share = (sums * scale).to(tl.float64)
    passed = tl.cumsum(share, 0)
    target = tl.load(uniform + row) * tl.sum(share, 0)
    last = tl.max(tl.where(share > 0, block, 0), 0)
    chosen = tl.minimum(tl.sum(tl.where(known & (passed <= target), 1, 0), 0), last)
    before = tl.sum(tl.where(block < chosen, share, 0.0), 0)
    word = chosen * BLOCK + tl.arange(0, BLOCK)
    inside = word < num_words
    x = tl.load(logit + row * num_words + word, mask=inside, other=LOWEST) * inverse_temperature
    exp = tl.where(inside, tl.exp(x - top), 0.0).to(tl.float64)
    cumulative = before + tl.cumsum(exp, 0)
    # Rounding may move the target past the end of the block: then take its last word of positive probability.
    end = tl.max(tl.where(exp > 0, tl.arange(0, BLOCK), 0), 0)
    index = tl.minimum(tl.sum(tl.where(cumulative <= target, 1, 0), 0), end)
    tl.store(token + row, (chosen * BLOCK + index).to(tl.int64))
    own = tl.sum(tl.where(tl.arange(0, BLOCK) == index, x, 0.0), 0)
    tl.store(logp + row, own - top - tl.log(whole))


def draw_tokens(logits_RV: Tensor, uniform_R: Tensor, temperature: float) -> Choice:
    """Draw a word per row: the first whose cumulative probability exceeds the random number, as in `choose.draw`."""
    rows, num_words = logits_RV.shape
    block = min(_BLOCK, triton.next_power_of_2(num_words))
    blocks = triton.cdiv(num_words, block)
    highest, total, weighted = (torch.empty(rows, blocks, device=logits_RV.device) for _ in range(3))
    _block_kernel[(rows, blocks)](logits_RV, highest, total, weighted, num_words, 1 / temperature, BLOCK=block)
    token_R = torch.empty(rows, dtype=torch.long, device=logits_RV.device)
    logp_R, entropy_R = (torch.empty(rows, device=logits_RV.device) for _ in range(2))
    _draw_kernel[(rows,)](
        logits_RV, highest, total, weighted, uniform_R, token_R, logp_R, entropy_R, num_words, blocks, 1 / temperature,
        BLOCK=block, BLOCKS=triton.next_power_of_2(blocks), num_warps=8,
    )  # fmt: skip
    return Choice(token_R, logp_R, entropy_R)


@dataclass(frozen=True, eq=False)
class RowState:
    """The state of the rows that are being sampled.

    `row_R`: the index of the row in the tables. `own_R`: the number of tokens sampled so far. `place_R`, `position_R`:
    the index of the newest token among the sampled ones, and in the whole sequence. `live_R`: 1 until the row has
    ended.
    """

    row_R: Tensor
    own_R: Tensor
    place_R: Tensor
    position_R: Tensor
    live_R: Tensor


@triton.jit
def _record_kernel(
    token, logp, entropy, response, logps, entropies, length, finished,
    row, own, place, position, live, stops, limit, forced, num_columns, num_stops,
    STOPS: tl.constexpr, FORCES: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0)
    if tl.load(live + r) == 0:
        return
    chosen = tl.load(token + r)
    table_row = tl.load(row + r).to(tl.int64)
    count = tl.load(own + r)
    at = table_row * num_columns + count
    is_sampled = True
    if FORCES:
        fed = tl.load(forced + at).to(tl.int64)
        is_sampled = fed < 0
        chosen = tl.where(is_sampled, chosen, fed)
        tl.store(token + r, chosen)
    tl.store(response + at, chosen)
    tl.store(logps + at, tl.load(logp + r), mask=is_sampled)
    tl.store(entropies + at, tl.load(entropy + r), mask=is_sampled)
    tl.store(length + table_row, (count + 1).to(tl.int64))
    index = tl.arange(0, STOPS)
    ids = tl.load(stops + index, mask=index < num_stops, other=-1)
    ends = tl.where(is_sampled, tl.max(tl.where(ids == chosen, 1, 0), 0), 0)
    tl.store(finished + table_row, ends.to(tl.int8))
    tl.store(place + r, count)
    tl.store(position + r, tl.load(position + r) + 1)
    tl.store(own + r, count + 1)
    tl.store(live + r, tl.where((ends == 0) & (count + 1 < tl.load(limit + table_row)), 1, 0))


def record(
    choice: Choice,
    tables: ResponseTables,
    rows: RowState,
    stop_ids: Tensor,
    limit_B: Tensor,
    forced_BT: Tensor | None = None,
) -> None:
    """Write the chosen tokens to the tables. A row ends with a stop token, or after `limit_B` tokens.

    Where `forced_BT` has a token, that replaces the chosen one, also in `choice`; it has no log-probability and no
    entropy, and does not end the row.
    """
    _record_kernel[(len(choice.token_R),)](
        choice.token_R, choice.logp_R, choice.entropy_R,
        tables.response_BT, tables.logp_BT, tables.entropy_BT, tables.length_B, tables.finished_B.view(torch.int8),
        rows.row_R, rows.own_R, rows.place_R, rows.position_R, rows.live_R,
        stop_ids, limit_B, stop_ids if forced_BT is None else forced_BT, tables.response_BT.shape[1], len(stop_ids),
        STOPS=triton.next_power_of_2(len(stop_ids)), FORCES=forced_BT is not None, num_warps=1,
    )  # fmt: skip
