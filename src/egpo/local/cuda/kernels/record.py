"""What was chosen goes into the tables, and every row moves on or is over: on the device, so that no token waits for
the host. R rows, B rows of the tables, T tokens."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from egpo.local.sampling.choose import Choice


@dataclass(frozen=True, eq=False)
class TokenTables:
    """(B, T) each, then (B,): what `sampling.sample` fills row by row."""

    response_BT: Tensor
    logp_BT: Tensor
    entropy_BT: Tensor
    length_B: Tensor
    finished_B: Tensor


@dataclass(frozen=True, eq=False)
class RowState:
    """`row_R`: the row of the tables. `own_R`: its tokens so far. `place_R`, `position_R`: where its newest token goes
    among its own, and in the sequence. `live_R`: 1 until it is over."""

    row_R: Tensor
    own_R: Tensor
    place_R: Tensor
    position_R: Tensor
    live_R: Tensor


@triton.jit
def _record_kernel(
    token, logp, entropy, response, logps, entropies, length, finished,
    row, own, place, position, live, stops, limit, room, num_stops, STOPS: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0)
    if tl.load(live + r) == 0:
        return
    chosen = tl.load(token + r)
    table_row = tl.load(row + r).to(tl.int64)
    count = tl.load(own + r)
    at = table_row * room + count
    tl.store(response + at, chosen)
    tl.store(logps + at, tl.load(logp + r))
    tl.store(entropies + at, tl.load(entropy + r))
    tl.store(length + table_row, (count + 1).to(tl.int64))
    index = tl.arange(0, STOPS)
    ids = tl.load(stops + index, mask=index < num_stops, other=-1)
    ends = tl.max(tl.where(ids == chosen, 1, 0), 0)
    tl.store(finished + table_row, ends.to(tl.int8))
    tl.store(place + r, count)
    tl.store(position + r, tl.load(position + r) + 1)
    tl.store(own + r, count + 1)
    tl.store(live + r, tl.where((ends == 0) & (count + 1 < tl.load(limit)), 1, 0))


def record(choice: Choice, tables: TokenTables, rows: RowState, stop_ids: Tensor, limit_1: Tensor) -> None:
    """A stop token belongs to its response. A row is over after it, or when it has `limit_1` tokens."""
    _record_kernel[(len(choice.token_R),)](
        choice.token_R, choice.logp_R, choice.entropy_R,
        tables.response_BT, tables.logp_BT, tables.entropy_BT, tables.length_B, tables.finished_B.view(torch.int8),
        rows.row_R, rows.own_R, rows.place_R, rows.position_R, rows.live_R,
        stop_ids, limit_1, tables.response_BT.shape[1], len(stop_ids),
        STOPS=triton.next_power_of_2(len(stop_ids)), num_warps=1,
    )  # fmt: skip
