"""The rows of a batch through the captured graphs, into the batch's own tables. B rows, T tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from egpo.config.schema import Rollout
from egpo.local.cuda.decoder import Decoder, Job
from egpo.local.cuda.kernels.record import TokenTables
from egpo.local.policies.policy import Policy
from egpo.local.sampling.choose import Sampling
from egpo.local.sampling.stops import Stops

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
