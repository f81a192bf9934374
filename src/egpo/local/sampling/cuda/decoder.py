"""Sampling on a GPU by captured graphs: all prompts once, then one token at a time; the host checks every 16 tokens.

Tensor suffixes: P prompts, B rows of the tables, R rows at once, T tokens, D hidden.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from egpo.errors import warn_once
from egpo.local.memory import OUT_OF_MEMORY, is_out_of_memory
from egpo.local.sampling.choose import ResponseTables, Sampling, Stops
from egpo.local.sampling.cuda.decode_buffers import BufferSize, DecodeBuffers, prefill
from egpo.local.sampling.cuda.row_scheduler import NEW_ROW, RowScheduler, bucket, first_stop
from egpo.local.sampling.cuda.token_graphs import TokenGraphs
from egpo.local.sampling.cuda.weights import DecoderWeights

_CHECK_EVERY = 16
"""Number of tokens after which the host checks which rows have ended. A row that ends in between costs little; a check
takes a few 100 microseconds."""
_KEPT_FRAC = 0.25
"""Buffers of at most this fraction of the GPU's memory are kept while the policy is updated; larger ones are freed."""
_CACHE_FRAC = 0.6
"""Largest fraction of the GPU's free memory that the key-value cache may use."""
_MOST_ROWS = 1024
"""Largest number of rows sampled at once: more are not faster."""
_PROMPTS_AT_ONCE = 256
"""Largest number of prompts whose keys are stored at once. A job with more prompts is split."""


@dataclass(frozen=True, eq=False)
class DecodeJob:
    """The rows to sample: row `rows[i]` of the tables is a response to `prompts[prompt_of[i]]`.

    A response has at most `new_tokens` tokens, and at most `at_once` rows are sampled at once. `alternatives` is the
    number of likeliest tokens to record at positions of high entropy; 0: none. `turns` continues rows that have ended a
    turn of an episode; None: a row that has ended is over.
    """

    prompts: Sequence[Sequence[int]]
    rows: Sequence[int]
    prompt_of: Sequence[int]
    uniform_BT: Tensor
    sampling: Sampling
    stops: Stops
    at_once: int
    new_tokens: int
    alternatives: int = 0
    turns: "EpisodeTurns | None" = None

    @property
    def size(self) -> BufferSize:
        return BufferSize(
            rows=min(self.at_once, len(self.rows)),
            prompts=len(self.prompts),
            prompt_tokens=-(-max(map(len, self.prompts)) // 64) * 64,
            new_tokens=self.new_tokens,
            table_rows=len(self.uniform_BT),
            stops=max(1, len(self.stops.ids)),
            alternatives=self.alternatives,
            forces=int(self.turns is not None),
        )


class Decoder:
    """A sampler that replays captured graphs.

    Buffers and graphs are created for the first job, and for a larger one.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._weights: DecoderWeights | None = None
        self._buffers: DecodeBuffers | None = None
        self._graphs: TokenGraphs | None = None
        self._most_rows: int | None = None
        """Limit of the rows sampled at once, set when memory runs out; None before."""
        self._rows_tried = 0
        """The number of rows at once for which buffers were last allocated, or tried to be."""

    def fill(self, tables: ResponseTables, job: DecodeJob, pad_id: int) -> None:
        """Sample the rows of the job, and write them to the tables."""
        for part in _parts(job):
            _copy(self.run(part), tables, part, pad_id)
        self.release_large()

    @torch.no_grad()
    def run(self, job: DecodeJob) -> ResponseTables:
        """Sample the rows of a job, and return the decoder's own tables with these rows filled.

        The next job overwrites the tables. If memory runs out, start again with half as many rows at once.
        """
        while True:
            try:
                return self._run(job)
            except OUT_OF_MEMORY as error:
                if not is_out_of_memory(error) or self._rows_tried <= 1:
                    raise
            self._most_rows = self._rows_tried // 2
            warn_once(
                "rows at once",
                f"out of memory sampling {self._rows_tried} rows at once; continuing with {self._most_rows} "
                "(set rollout.rows_at_once to start with fewer)",
            )
            self._forget()
            torch.cuda.empty_cache()

    def _run(self, job: DecodeJob) -> ResponseTables:
        buffers, graphs = self._prepare(job)
        prefill(self._model, buffers, job.prompts)
        buffers.uniform_BT[: len(job.uniform_BT), : job.new_tokens] = job.uniform_BT
        buffers.limit_B.fill_(job.new_tokens)
        buffers.stop_ids.fill_(-1)
        buffers.stop_ids[: len(job.stops.ids)] = torch.tensor(sorted(job.stops.ids), device=buffers.stop_ids.device)
        if buffers.tables.alternatives is not None:
            buffers.tables.alternatives.clear(torch.arange(buffers.size.table_rows, device=buffers.stop_ids.device))
        if job.turns is not None:
            job.turns.begin(buffers, job.rows)
        _sample(self._tokenizer, buffers, graphs, job)
        return buffers.tables

    def release_large(self) -> None:
        """Free buffers that are too large to keep while the policy is updated."""
        if self._buffers is not None and self._buffers.hidden_RD.is_cuda:
            total = torch.cuda.get_device_properties(self._model.device).total_memory
            if self._buffers.size.cache_bytes(self._model) > _KEPT_FRAC * total:
                self._forget()

    def _forget(self) -> None:
        self._buffers = self._graphs = self._weights = None

    def _prepare(self, job: DecodeJob) -> tuple[DecodeBuffers, TokenGraphs]:
        if self._weights is None or not self._weights.have_same_addresses:
            self._forget()
            self._weights = DecoderWeights(self._model)
        else:
            self._weights.refresh()
        size = job.size.limited(self._most_rows)
        if self._buffers is None or not self._buffers.size.holds(size):
            size = size if self._buffers is None else self._buffers.size.joined(size)
            self._graphs = self._buffers = None
            fitting = _rows_that_fit(self._model, size)
            if fitting < size.rows:
                self._most_rows = fitting
            self._rows_tried = size.limited(fitting).rows
            self._buffers = DecodeBuffers(self._model, size.limited(fitting))
            self._graphs = TokenGraphs(self._weights, self._buffers)
        assert self._graphs is not None
        return self._buffers, self._graphs


def _rows_that_fit(model: PreTrainedModel, size: BufferSize) -> int:
    """Return the number of rows at once whose cache fits into _CACHE_FRAC of the free memory: 1 to _MOST_ROWS."""
    if model.device.type != "cuda":
        return _MOST_ROWS
    free, _ = torch.cuda.mem_get_info(model.device)
    free += torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device)
    return max(1, min(_MOST_ROWS, int(_CACHE_FRAC * free * size.rows / size.cache_bytes(model))))


def _sample(tokenizer: PreTrainedTokenizerBase, buffers: DecodeBuffers, graphs: TokenGraphs, job: DecodeJob) -> None:
    """Replay graphs until every row of the job has ended."""
    scheduler = RowScheduler(job.rows, job.prompt_of, min(buffers.size.rows, job.at_once))
    lengths = [len(prompt) for prompt in job.prompts]
    changed = True
    while scheduler.active or (job.turns is not None and job.turns.wait(buffers, scheduler)):
        rows = bucket(len(scheduler.active), buffers.size.rows)
        if changed:
            _place(buffers, scheduler, lengths, rows)
        steps = min(_CHECK_EVERY, scheduler.steps_left(job.new_tokens))
        graphs.replay(rows, job.sampling, steps, records=job.alternatives > 0, forces=job.turns is not None)
        scheduler.advance(steps)
        live = buffers.of_state("live", len(scheduler.active)).tolist()
        over = [not alive for alive in live]
        if job.stops.strings:
            over = _stopped(tokenizer, buffers, scheduler, over, steps, job.stops)
        continued = False
        if job.turns is not None:
            before, ended = scheduler.active, any(over)
            over = job.turns.after(buffers, scheduler, over)
            continued = ended or scheduler.active is not before
        changed = scheduler.release(over) or continued
        changed = scheduler.admit_waiting() or changed


class EpisodeTurns(Protocol):
    """What continues the rows of a job after a turn: `decode_episodes.GraphTurns`."""

    def begin(self, buffers: DecodeBuffers, rows: Sequence[int]) -> None:
        """Prepare the first turn of these rows of the tables."""

    def after(self, buffers: DecodeBuffers, scheduler: RowScheduler, over: list[bool]) -> list[bool]:
        """Continue or park rows whose turn has ended. Return which of the rows that are active then are over."""

    def wait(self, buffers: DecodeBuffers, scheduler: RowScheduler) -> bool:
        """Wait until a parked row can continue, and return True; False if there is none."""


def _place(buffers: DecodeBuffers, scheduler: RowScheduler, prompt_lengths: Sequence[int], rows: int) -> None:
    """Write the active rows and their hidden states to the device. A new row has the hidden state of its prompt."""
    device, active = buffers.state.device, scheduler.active
    last_place = torch.tensor([max(row.last_place, 0) for row in active], device=device)
    prompt = torch.tensor([row.prompt for row in active], device=device)
    is_new = torch.tensor([row.last_place == NEW_ROW for row in active], device=device)
    buffers.hidden_RD[: len(active)] = torch.where(
        is_new[:, None], buffers.prompt_hidden_PD[prompt], buffers.hidden_RD[last_place]
    )
    buffers.state[:, :rows] = torch.tensor(
        scheduler.state(prompt_lengths, buffers.tile, rows), dtype=torch.int32, device=device
    )


def _stopped(
    tokenizer: PreTrainedTokenizerBase,
    buffers: DecodeBuffers,
    scheduler: RowScheduler,
    over: list[bool],
    steps: int,
    stops: Stops,
) -> list[bool]:
    """Mark in `over` the rows whose text has a stop string, cut them at its end, and return `over`."""
    tables, rows = buffers.tables, [row.row for row in scheduler.active]
    lengths = tables.length_B[rows].tolist()
    written = tables.response_BT[rows, : max(lengths)].tolist()
    for i, (row, tokens, length) in enumerate(zip(scheduler.active, written, lengths, strict=True)):
        end = first_stop(tokens[:length], row.own - steps, stops, tokenizer)
        if end is not None:
            over[i] = True
            tables.length_B[row.row], tables.finished_B[row.row] = end, True
    return over


def _copy(filled: ResponseTables, tables: ResponseTables, job: DecodeJob, pad_id: int) -> None:
    """Copy the rows of a job to `tables`, with padding and statistics of 0 past the end of each response."""
    row_R = torch.tensor(job.rows, device=tables.length_B.device)
    length_R = filled.length_B[row_R]
    past_RT = torch.arange(job.new_tokens, device=row_R.device) >= length_R[:, None]
    for name, value in (("response_BT", pad_id), ("logp_BT", 0.0), ("entropy_BT", 0.0)):
        getattr(tables, name)[row_R] = getattr(filled, name)[row_R, : job.new_tokens].masked_fill(past_RT, value)
    tables.length_B[row_R], tables.finished_B[row_R] = length_R, filled.finished_B[row_R]
    if tables.alternatives is not None and filled.alternatives is not None:
        position_BS, entropy_BS, token_BSK, probability_BSK = filled.alternatives.tables()
        tables.alternatives.position_BS[row_R] = position_BS[row_R]
        tables.alternatives.entropy_BS[row_R] = entropy_BS[row_R]
        # The buffers may be those of an earlier job with more alternatives.
        tables.alternatives.token_BSK[row_R] = token_BSK[row_R, :, : job.alternatives]
        tables.alternatives.probability_BSK[row_R] = probability_BSK[row_R, :, : job.alternatives]


def _parts(job: DecodeJob) -> Iterator[DecodeJob]:
    """Split a job into parts of at most _PROMPTS_AT_ONCE prompts, numbered from 0 in each part."""
    needed = sorted(set(job.prompt_of))
    for first in range(0, len(needed), _PROMPTS_AT_ONCE):
        here = {prompt: place for place, prompt in enumerate(needed[first : first + _PROMPTS_AT_ONCE])}
        pairs = [(row, here[p]) for row, p in zip(job.rows, job.prompt_of, strict=True) if p in here]
        rows, prompt_of = zip(*pairs, strict=True)
        yield replace(job, prompts=[job.prompts[prompt] for prompt in here], rows=rows, prompt_of=prompt_of)
