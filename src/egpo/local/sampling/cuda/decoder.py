"""Sampling on a GPU: the prompts once, then captured graphs, the host looking in every few tokens.

P problems, B rows, R rows at once, T tokens, D hidden.

The rows of a batch through the captured graphs, into the batch's own tables. B rows, T tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from egpo.config.schema import Rollout
from egpo.errors import warn_once
from egpo.local.memory import OUT_OF_MEMORY, is_out_of_memory
from egpo.local.models.policy import Policy
from egpo.local.sampling.choose import Sampling, Stops
from egpo.local.sampling.cuda.decode_buffers import DecodeBuffers, RoomSize, prefill
from egpo.local.sampling.cuda.kernels.choose import TokenTables
from egpo.local.sampling.cuda.row_scheduler import FRESH, RowScheduler, bucket, first_stop
from egpo.local.sampling.cuda.token_graphs import TokenGraphs
from egpo.local.sampling.cuda.weights import DecoderWeights

# Tokens between two looks: rows that are over meanwhile cost next to nothing, a look costs a few hundred microseconds.
_LOOK_EVERY = 16
# Of the GPU's memory, for a room that stays while the policy is updated; a larger one is given back.
_STAYS = 0.25
# Of the memory that is free, for the cache at most.
_CACHE_SHARE = 0.6
# Beyond it, more rows at once bring nothing.
_MOST_ROWS = 1024


@dataclass(frozen=True, eq=False)
class Job:
    """`rows[i]` of the tables answers `prompts[prompt_of[i]]`; `at_once` rows at most, in `new_tokens` at most."""

    prompts: Sequence[Sequence[int]]
    rows: Sequence[int]
    prompt_of: Sequence[int]
    uniform_BT: Tensor
    sampling: Sampling
    stops: Stops
    at_once: int
    new_tokens: int

    @property
    def size(self) -> RoomSize:
        return RoomSize(
            rows=min(self.at_once, len(self.rows)),
            prompts=len(self.prompts),
            prompt_tokens=-(-max(map(len, self.prompts)) // 64) * 64,
            new_tokens=self.new_tokens,
            table_rows=len(self.uniform_BT),
            stops=max(1, len(self.stops.ids)),
        )


class Decoder:
    """Lives as long as its model. What it holds on the device is made by the first job, and again by a larger one."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._weights: DecoderWeights | None = None
        self._room: DecodeBuffers | None = None
        self._graphs: TokenGraphs | None = None
        self._most_rows: int | None = None
        """What memory has turned out to hold."""
        self._rows_tried = 0
        """Of the room in use, or of the last one that was asked for."""

    @torch.no_grad()
    def run(self, job: Job) -> TokenTables:
        """Tables in which every row of the job is filled. They are the decoder's own: read them before the next job.
        Where memory runs out it begins again with fewer rows at once: the others wait for a seat."""
        while True:
            try:
                return self._run(job)
            except OUT_OF_MEMORY as error:
                if not is_out_of_memory(error) or self._rows_tried <= 1:
                    raise
            self._most_rows = self._rows_tried // 2
            warn_once(
                "rows at once",
                f"out of memory sampling {self._rows_tried} rows at once; {self._most_rows} (rollout.rows_at_once)",
            )
            self._forget()
            torch.cuda.empty_cache()

    def _run(self, job: Job) -> TokenTables:
        room, graphs = self._prepare(job)
        prefill(self._model, room, job.prompts)
        room.uniform_BT[: len(job.uniform_BT), : job.new_tokens] = job.uniform_BT
        room.limit_1.fill_(job.new_tokens)
        room.stop_ids.fill_(-1)
        room.stop_ids[: len(job.stops.ids)] = torch.tensor(sorted(job.stops.ids), device=room.stop_ids.device)
        _sample(self._tokenizer, room, graphs, job)
        return room.tables

    def release_large(self) -> None:
        """Give the room back where the update will want the memory."""
        if self._room is not None and self._room.hidden_RD.is_cuda:
            total = torch.cuda.get_device_properties(self._model.device).total_memory
            if self._room.size.cache_bytes(self._model) > _STAYS * total:
                self._forget()

    def _forget(self) -> None:
        self._room = self._graphs = self._weights = None

    def _prepare(self, job: Job) -> tuple[DecodeBuffers, TokenGraphs]:
        if self._weights is None or not self._weights.are_where_they_were:
            self._forget()
            self._weights = DecoderWeights(self._model)
        else:
            self._weights.refresh()
        size = job.size.limited(self._most_rows)
        if self._room is None or not self._room.size.holds(size):
            size = size if self._room is None else self._room.size.joined(size)
            self._graphs = self._room = None
            fitting = _rows_that_fit(self._model, size)
            if fitting < size.rows:
                self._most_rows = fitting
            self._rows_tried = size.limited(fitting).rows
            self._room = DecodeBuffers(self._model, size.limited(fitting))
            self._graphs = TokenGraphs(self._weights, self._room)
        assert self._graphs is not None
        return self._room, self._graphs


def _rows_that_fit(model: PreTrainedModel, size: RoomSize) -> int:
    """One at least: so that the cache takes a share of what is free, and a batch is not larger than pays."""
    if model.device.type != "cuda":
        return _MOST_ROWS
    free, _ = torch.cuda.mem_get_info(model.device)
    free += torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device)
    return max(1, min(_MOST_ROWS, int(_CACHE_SHARE * free * size.rows / size.cache_bytes(model))))


def _sample(tokenizer: PreTrainedTokenizerBase, room: DecodeBuffers, graphs: TokenGraphs, job: Job) -> None:
    seats = RowScheduler(job.rows, job.prompt_of, min(room.size.rows, job.at_once))
    lengths = [len(prompt) for prompt in job.prompts]
    changed = True
    while seats.taken:
        rows = bucket(len(seats.taken), room.size.rows)
        if changed:
            _place(room, seats, lengths, rows)
        steps = min(_LOOK_EVERY, seats.steps_left(job.new_tokens))
        graphs.replay(rows, job.sampling, steps)
        seats.advance(steps)
        live = room.of_state("live", len(seats.taken)).tolist()
        over = [not alive for alive in live]
        if job.stops.strings:
            over = _stopped(tokenizer, room, seats, over, steps, job.stops)
        changed = seats.leave(over)
        changed = seats.seat_waiting() or changed


def _place(room: DecodeBuffers, seats: RowScheduler, prompt_lengths: Sequence[int], rows: int) -> None:
    """Write the seats to the device, each with its hidden state: a new row goes on from its prompt's."""
    device, taken = room.state.device, seats.taken
    stood = torch.tensor([max(seat.stood, 0) for seat in taken], device=device)
    prompt = torch.tensor([seat.prompt for seat in taken], device=device)
    fresh = torch.tensor([seat.stood == FRESH for seat in taken], device=device)
    room.hidden_RD[: len(taken)] = torch.where(fresh[:, None], room.prompt_hidden_PD[prompt], room.hidden_RD[stood])
    room.state[:, :rows] = torch.tensor(seats.state(prompt_lengths, room.tile, rows), dtype=torch.int32, device=device)


def _stopped(
    tokenizer: PreTrainedTokenizerBase,
    room: DecodeBuffers,
    seats: RowScheduler,
    over: list[bool],
    steps: int,
    stops: Stops,
) -> list[bool]:
    """Those over, with the rows whose text holds a stop string: cut off where it ends."""
    tables, rows = room.tables, [seat.row for seat in seats.taken]
    lengths = tables.length_B[rows].tolist()
    written = tables.response_BT[rows, : max(lengths)].tolist()
    for i, (seat, tokens, length) in enumerate(zip(seats.taken, written, lengths, strict=True)):
        end = first_stop(tokens[:length], seat.own - steps, stops, tokenizer)
        if end is not None:
            over[i] = True
            tables.length_B[seat.row], tables.finished_B[seat.row] = end, True
    return over


# Prompts whose keys are held at once: beyond it, rows come in parts.
_PROMPTS_AT_ONCE = 256


class Tables(Protocol):
    """Where rows write what they sampled, each in its place."""

    length_B: Tensor
    finished_B: Tensor


class Batch(Protocol):
    """What `sampling.sample` knows of a call."""

    @property
    def policy(self) -> Policy: ...
    @property
    def prompts(self) -> Sequence[tuple[int, ...]]: ...
    @property
    def prompt_B(self) -> list[int]: ...
    @property
    def settings(self) -> Rollout: ...
    @property
    def sampling(self) -> Sampling: ...
    @property
    def stops(self) -> Stops: ...
    @property
    def uniform_BT(self) -> Tensor: ...
    @property
    def tables(self) -> Tables: ...


def fill(decoder: Decoder, batch: Batch, rows: Sequence[int]) -> None:
    """These rows of the batch. Past its end a response is padding, its statistics are 0."""
    prompt_B = batch.prompt_B
    job = Job(
        prompts=batch.prompts,
        rows=rows,
        prompt_of=[prompt_B[row] for row in rows],
        uniform_BT=batch.uniform_BT,
        sampling=batch.sampling,
        stops=batch.stops,
        at_once=batch.settings.rows_at_once or len(rows),
        new_tokens=batch.settings.max_response_tokens,
    )
    for part in _parts(job):
        _copy(decoder.run(part), batch.tables, part, batch.policy.pad_id)
    decoder.release_large()


def _copy(filled: TokenTables, tables: Tables, job: Job, pad_id: int) -> None:
    row_R = torch.tensor(job.rows, device=tables.length_B.device)
    length_R = filled.length_B[row_R]
    past_RT = torch.arange(job.new_tokens, device=row_R.device) >= length_R[:, None]
    for name, value in (("response_BT", pad_id), ("logp_BT", 0.0), ("entropy_BT", 0.0)):
        getattr(tables, name)[row_R] = getattr(filled, name)[row_R, : job.new_tokens].masked_fill(past_RT, value)
    tables.length_B[row_R], tables.finished_B[row_R] = length_R, filled.finished_B[row_R]


def _parts(job: Job) -> Iterator[Job]:
    """Each with the prompts that its rows answer, numbered anew."""
    needed = sorted(set(job.prompt_of))
    for first in range(0, len(needed), _PROMPTS_AT_ONCE):
        here = {prompt: place for place, prompt in enumerate(needed[first : first + _PROMPTS_AT_ONCE])}
        pairs = [(row, here[p]) for row, p in zip(job.rows, job.prompt_of, strict=True) if p in here]
        rows, prompt_of = zip(*pairs, strict=True)
        yield replace(job, prompts=[job.prompts[prompt] for prompt in here], rows=rows, prompt_of=prompt_of)
