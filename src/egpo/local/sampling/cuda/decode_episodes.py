"""Episodes on a GPU: after a turn, the tokens that follow it are written to a table, and the same graphs go on.

A row that has ended a turn goes back by one token, which is forced again: its keys and values were not written, because
the row had ended. Then follow the forced tokens of the environment, then sampled ones. A row that waits for a slow tool
keeps its slot in the cache (`park`).
"""

from collections.abc import Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

import torch
from torch import Tensor

from egpo.environments.episodes import TurnOutcome
from egpo.local.sampling.cuda.decode_buffers import DecodeBuffers
from egpo.local.sampling.cuda.decoder import DecodeJob, Decoder
from egpo.local.sampling.cuda.row_scheduler import ActiveRow, RowScheduler
from egpo.local.sampling.episode_rows import Episodes
from egpo.local.sampling.sample import SampleRequest


def fill_by_graphs(decoder: Decoder, request: SampleRequest, episodes: Episodes) -> None:
    """Sample the episodes of a request, and write them to its tables."""
    rows = [row for row in range(len(episodes.rows)) if not episodes.starts[row].ending]
    if not rows:
        return
    job = DecodeJob(
        prompts=request.prompts,
        rows=rows,
        prompt_of=[request.prompt_B[row] for row in rows],
        uniform_BT=request.uniform_BT.to(request.policy.device),
        sampling=request.sampling,
        stops=request.stops,
        at_once=request.settings.rows_at_once or len(rows),
        new_tokens=request.new_tokens,
        turns=GraphTurns(episodes),
    )
    decoder.fill(request.tables, job, request.policy.pad_id)


@dataclass(frozen=True, eq=False)
class _Turn:
    """A turn that has ended: its row, the row's number of tokens, and the answer of its environment."""

    row: ActiveRow
    last: int
    end: int
    answer: "Future[TurnOutcome]"


class GraphTurns:
    """The turns of a decoder's job. Batches do not depend on the clock if `model.deterministic` is set: then rows that
    wait continue together, when no other row is left."""

    def __init__(self, episodes: Episodes) -> None:
        self._episodes = episodes
        self._parked: list[_Turn] = []
        self._by_rule = torch.are_deterministic_algorithms_enabled()

    def begin(self, buffers: DecodeBuffers, rows: Sequence[int]) -> None:
        """Prepare the first turn of these rows; after memory ran out, in new instances of their environments."""
        assert buffers.forced_BT is not None
        self._parked = []
        self._episodes.restart(rows)
        buffers.forced_BT.fill_(-1)
        row_R = torch.tensor(rows, device=buffers.forced_BT.device)
        buffers.tables.logp_BT[row_R], buffers.tables.entropy_BT[row_R] = 0.0, 0.0
        self._open_turns(buffers, [(row, []) for row in rows])

    def after(self, buffers: DecodeBuffers, scheduler: RowScheduler, over: list[bool]) -> list[bool]:
        """Continue or park rows whose turn has ended. Return which of the rows that are active then are over."""
        ended = [row for row, is_over in zip(scheduler.active, over, strict=True) if is_over]
        turns = self._hand_over(buffers, ended)
        ready = [turn for turn in turns if self._is_ready(turn)]
        waiting = [turn for turn in turns if turn not in ready]
        for turn in waiting:
            scheduler.park(turn.row)
        if not self._by_rule:
            self._unpark(buffers, scheduler, [turn for turn in self._parked if turn.answer.done()])
        self._parked += waiting
        finished = self._continue(buffers, ready)
        return [row in finished for row in scheduler.active]

    def wait(self, buffers: DecodeBuffers, scheduler: RowScheduler) -> bool:
        """Wait until a parked row can continue, and return True; False if there is none."""
        while self._parked and not scheduler.active:
            wait(
                [turn.answer for turn in self._parked],
                return_when=ALL_COMPLETED if self._by_rule else FIRST_COMPLETED,
            )
            self._unpark(buffers, scheduler, [turn for turn in self._parked if turn.answer.done()])
            scheduler.admit_waiting()
        return bool(scheduler.active)

    def _is_ready(self, turn: _Turn) -> bool:
        return self._episodes.rows[turn.row.row].episode.is_fast or (turn.answer.done() and not self._by_rule)

    def _unpark(self, buffers: DecodeBuffers, scheduler: RowScheduler, ready: list[_Turn]) -> None:
        self._parked = [turn for turn in self._parked if turn not in ready]
        finished = self._continue(buffers, ready)
        for turn in ready:
            if turn.row in finished:
                scheduler.free(turn.row)
            else:
                scheduler.unpark(turn.row)

    def _hand_over(self, buffers: DecodeBuffers, ended: Sequence[ActiveRow]) -> list[_Turn]:
        """Hand the turns of these rows to their episodes."""
        if not ended:
            return []
        tables = buffers.tables
        row_R = torch.tensor([row.row for row in ended], device=tables.length_B.device)
        lengths, finished = tables.length_B[row_R].tolist(), tables.finished_B[row_R].tolist()
        written = tables.response_BT[row_R, : max(lengths)].tolist()
        turns = []
        for row, tokens, end, is_finished in zip(ended, written, lengths, finished, strict=True):
            own = tokens[self._episodes.rows[row.row].start : end]
            answer = self._episodes.end_turn(row.row, own, finished=bool(is_finished))
            turns.append(_Turn(row, own[-1], end, answer))
        return turns

    def _continue(self, buffers: DecodeBuffers, turns: Sequence[_Turn]) -> set[ActiveRow]:
        """Write the tokens that follow these turns. Return the rows whose episodes are over."""
        finished, opened = set(), []
        for turn in turns:
            forced = self._episodes.following(turn.row.row, turn.answer.result(), turn.last, turn.end)
            if self._episodes.rows[turn.row.row].episode.ending:
                finished.add(turn.row)
            else:
                turn.row.own = turn.end - 1
                opened.append((turn.row.row, [turn.last, *forced]))
        self._open_turns(buffers, opened)
        return finished

    def _open_turns(self, buffers: DecodeBuffers, opened: Sequence[tuple[int, list[int]]]) -> None:
        """Write the forced tokens before each row's current turn, and the random numbers and the limit of the turn."""
        if not opened:
            return
        assert buffers.forced_BT is not None
        rows, columns = [row for row, _ in opened], buffers.forced_BT.shape[1]
        starts = [self._episodes.rows[row].start for row in rows]
        uniforms = [self._episodes.uniforms(row)[: columns - start] for row, start in zip(rows, starts, strict=True)]
        _write(buffers.uniform_BT, rows, starts, uniforms)
        forced = [torch.tensor(tokens, dtype=torch.int32) for _, tokens in opened]
        first = [start - len(tokens) for start, tokens in zip(starts, forced, strict=True)]
        _write(buffers.forced_BT, rows, first, forced)
        most, longest = self._episodes.settings.max_response_tokens, self._episodes.turn_tokens
        limits = torch.tensor([min(most, start + longest) for start in starts], dtype=torch.int32)
        device = buffers.limit_B.device
        buffers.limit_B[torch.tensor(rows, device=device)] = limits.to(device)


def _write(table_BT: Tensor, rows: Sequence[int], starts: Sequence[int], pieces: Sequence[Tensor]) -> None:
    """Write each piece to its row of a table, from its start on; all with one copy to the device."""
    lengths = torch.tensor([len(piece) for piece in pieces])
    row_N = torch.tensor(rows).repeat_interleave(lengths)
    column_N = torch.cat([torch.arange(start, start + len(p)) for start, p in zip(starts, pieces, strict=True)])
    device = table_BT.device
    table_BT[row_N.to(device), column_N.to(device)] = torch.cat(list(pieces)).to(device)
