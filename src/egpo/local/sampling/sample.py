"""Sample groups of responses, recording the log-probability and the exact entropy of every token.

Tensor suffixes: P problems, G samples per problem, B = P * G rows, R rows still being sampled, T tokens, V vocabulary.
On a GPU with the engine's own layers, `cuda/decoder` samples the rows by captured graphs. Everywhere else the loop of
this module does, and on a CPU each core takes a part of the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from egpo.config.schema import Rollout
from egpo.errors import warn_once
from egpo.local.draws import Draws
from egpo.local.memory import OUT_OF_MEMORY, is_out_of_memory, out_of_memory_as
from egpo.local.models.caches import compacted
from egpo.local.models.packs import Sequences, pack_groups
from egpo.local.models.policy import AnySlots, Policy, prompt_tokens, require_room
from egpo.local.rollouts import Rollouts
from egpo.local.sampling.alternatives import record_alternatives
from egpo.local.sampling.choose import ResponseTables, Sampling, Stops, choose
from egpo.local.threads import num_worker_threads, parallel_map, raise_if_cancelled
from egpo.tags import THINK_TAGS
from egpo.tasks import Problem, Task
from egpo.tasks.episodes import environment_of

if TYPE_CHECKING:
    from egpo.local.sampling.cuda.decoder import Decoder

_FEWEST_ROWS_PER_CORE = 8
"""Smallest number of rows that a core samples: it takes nearly as long for fewer."""
_DECODERS: "WeakKeyDictionary[Policy, Decoder]" = WeakKeyDictionary()
"""The CUDA decoder of each policy, with its buffers and graphs; freed with the policy."""


@torch.no_grad()
@out_of_memory_as(
    "while sampling", "lower rollout.rows_at_once or rollout.max_response_tokens, or run fewer processes on this GPU"
)
def sample(
    policy: Policy,
    task: Task,
    problems: Sequence[Problem],
    settings: Rollout,
    draws: Draws,
    *,
    alternatives: int = 0,
    tags: tuple[str, str] = THINK_TAGS,
) -> Rollouts:
    """Sample `settings.n` responses to each problem, or episodes if the task has an environment.

    A response depends only on its problem and its random numbers. `alternatives`: number of likeliest tokens to record
    at positions of high entropy; it does not change a response.
    """
    if problems and environment_of(task, problems[0]) is not None:
        from egpo.local.sampling.sample_episodes import sample_episodes

        return sample_episodes(policy, task, problems, settings, draws, tags)
    prompts = prompt_tokens(policy, task, problems)
    for problem, prompt in zip(problems, prompts, strict=True):
        require_room(policy, problem, len(prompt), settings.max_response_tokens)
    keys = [problem.key for problem in problems]
    uniform_BT = draws.uniforms(keys, settings.n, settings.max_response_tokens).to(policy.device)
    size = (len(problems) * settings.n, settings.max_response_tokens)
    tables = ResponseTables.empty(size, policy, alternatives)
    prompt_B = [index for index in range(len(prompts)) for _ in range(settings.n)]
    request = SampleRequest(policy, prompts, prompt_B, settings, uniform_BT, tables)
    fill_tables(request)
    return _rollouts(request, problems)


def fill_tables(request: "SampleRequest") -> None:
    """Sample all rows of a request, and write them to its tables."""
    decoder, settings = cuda_decoder(request.policy), request.settings
    if decoder is not None:
        _fill_by_graphs(decoder, request)
        return
    parts = split_rows(*request.groups, num_worker_threads(request.policy))
    rows_at_once = None if settings.rows_at_once is None else max(1, settings.rows_at_once // len(parts))
    parallel_map(lambda rows: _fill(request, rows, rows_at_once), parts)


def cuda_decoder(policy: Policy) -> "Decoder | None":
    """Return the decoder that samples from the policy by captured CUDA graphs, created on the first call.

    Return None if the engine's CUDA layers cannot compute the model. Warn once if its CPU layers cannot either.
    """
    policy.warn_if_slow()
    if policy not in _DECODERS and policy.path == "cuda_layers":
        from egpo.local.sampling.cuda.decoder import Decoder

        _DECODERS[policy] = Decoder(policy.model, policy.tokenizer)
    return _DECODERS.get(policy)


def split_rows(num_problems: int, group: int, num_cores: int) -> list[list[int]]:
    """Split the rows 0 to P * G - 1, in order, into at most `num_cores` parts of similar size.

    Groups stay whole, so that each prompt is computed once, unless there are fewer groups than parts.
    """
    num_rows = num_problems * group
    num_parts = max(1, min(num_cores, num_rows // _FEWEST_ROWS_PER_CORE))
    unit = group if num_problems >= num_parts else 1
    bounds = [unit * (num_rows // unit * part // num_parts) for part in range(num_parts + 1)]
    return [list(range(first, last)) for first, last in pairwise(bounds)]


@dataclass(frozen=True, eq=False)
class SampleRequest:
    """The rows to sample: row b answers `prompts[prompt_B[b]]` with at most T tokens, the width of `uniform_BT`.

    Rows of one prompt are adjacent. The results are written to `tables`.
    """

    policy: Policy
    prompts: Sequence[tuple[int, ...]]
    prompt_B: Sequence[int]
    settings: Rollout
    uniform_BT: Tensor
    tables: ResponseTables

    @property
    def new_tokens(self) -> int:
        return self.uniform_BT.shape[1]

    @property
    def groups(self) -> tuple[int, int]:
        """The number of groups of adjacent rows of one prompt, and their size; groups of one row if sizes differ."""
        num_rows, num_prompts = len(self.prompt_B), len(self.prompts)
        group, rest = divmod(num_rows, num_prompts)
        same = not rest and all(self.prompt_B[row] == row // group for row in range(num_rows))
        return (num_prompts, group) if same else (num_rows, 1)

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.settings.temperature, self.settings.top_p, self.settings.top_k, self.settings.min_p)

    @property
    def stops(self) -> Stops:
        return Stops(self.policy.stop_ids | set(self.settings.stop_tokens), self.settings.stop)


def _fill_by_graphs(decoder: "Decoder", request: SampleRequest) -> None:
    from egpo.local.sampling.cuda.decoder import DecodeJob

    num_rows = len(request.prompt_B)
    job = DecodeJob(
        prompts=request.prompts,
        rows=range(num_rows),
        prompt_of=request.prompt_B,
        uniform_BT=request.uniform_BT,
        sampling=request.sampling,
        stops=request.stops,
        at_once=request.settings.rows_at_once or num_rows,
        new_tokens=request.new_tokens,
        alternatives=request.tables.num_alternatives,
    )
    decoder.fill(request.tables, job, request.policy.pad_id)


def _fill(request: SampleRequest, rows: list[int], rows_at_once: int | None) -> None:
    """Sample the rows, `rows_at_once` at a time (None: all).

    A part that does not fit into memory is cut in half. Rows are independent, so the result is the same.
    """
    at_once = rows_at_once or len(rows)
    parts = [rows[first : first + at_once] for first in range(0, len(rows), at_once)]
    while parts:
        if not _fits(request, parts[0]):
            half = len(parts[0]) // 2
            parts[:1] = [parts[0][:half], parts[0][half:]]
        else:
            parts.pop(0)


def _fits(request: SampleRequest, rows: list[int]) -> bool:
    """Sample these rows; return False if memory ran out."""
    try:
        _sample_rows(request, rows)
    except OUT_OF_MEMORY as error:
        if not is_out_of_memory(error) or len(rows) == 1:
            raise
        warn_once(
            "rows at once",
            f"out of memory sampling {len(rows)} rows at once; continuing with half as many "
            "(set rollout.rows_at_once to start with fewer)",
        )
        return False
    return True


def _sample_rows(request: SampleRequest, rows: list[int]) -> None:
    """Sample these rows, one token of every row at a time, until all have ended. A row that has ended is dropped."""
    policy, tables, sampling, stops = request.policy, request.tables, request.sampling, request.stops
    slots, hidden_RD = prefill(request, rows)
    row_R = torch.tensor(rows, device=policy.device)
    if tables.alternatives is not None:
        tables.alternatives.clear(row_R)  # rows that are started again after memory ran out
    for step in range(request.new_tokens):
        raise_if_cancelled()
        logits_RV = policy.logits(hidden_RD)
        choice = choose(logits_RV, request.uniform_BT[row_R, step], sampling)
        tables.write(row_R, step, choice)
        if tables.alternatives is not None:
            record_alternatives(tables.alternatives, row_R, step, logits_RV, choice.entropy_R, sampling)
        over_R = stops.over(choice.token_R, tables.written(row_R, step) if stops.strings else (), policy.tokenizer)
        tables.finished_B[row_R] = over_R
        token_R = choice.token_R
        if bool(over_R.any()):
            kept = compacted(~over_R)
            slots.keep(kept)
            row_R, token_R = row_R[kept], token_R[kept]
        if not len(row_R) or step + 1 == request.new_tokens:
            return
        hidden_RD = policy.next_hidden(token_R, slots)


def prefill(request: SampleRequest, rows: list[int]) -> tuple[AnySlots, Tensor]:
    """Compute each prompt once. Return the cache of the rows, and the hidden states that predict their first tokens."""
    device, prompt_B = request.policy.device, request.prompt_B
    needed = sorted({prompt_B[row] for row in rows})
    pack = pack_groups([Sequences(request.prompts[prompt]) for prompt in needed], device)
    slots = request.policy.open_slots()
    hidden_ND = request.policy.hidden(pack, slots)
    place_R = [needed.index(prompt_B[row]) for row in rows]
    slots.spread(pack.layout, place_R, request.new_tokens)
    last_R = torch.tensor([pack.layout.groups[place].responses_start - 1 for place in place_R], device=device)
    return slots, hidden_ND[last_R]


def _rollouts(request: SampleRequest, problems: Sequence[Problem]) -> Rollouts:
    """Return the filled tables as rollouts, cut to the longest response, with the decoded texts."""
    policy, tables = request.policy, request.tables
    longest = int(tables.length_B.max())
    mask_BT = torch.arange(longest, device=policy.device) < tables.length_B[:, None]
    rows = zip(tables.response_BT.tolist(), tables.length_B.tolist(), strict=True)
    texts = policy.tokenizer.batch_decode([row[:length] for row, length in rows], skip_special_tokens=True)
    return Rollouts(
        problems=tuple(problems),
        prompts=tuple(request.prompts),
        problem_B=torch.tensor(request.prompt_B),
        response_BT=tables.response_BT[:, :longest],
        mask_BT=mask_BT,
        # A row that was restarted after memory ran out may have old values past its end.
        logp_BT=tables.logp_BT[:, :longest] * mask_BT,
        entropy_BT=tables.entropy_BT[:, :longest] * mask_BT,
        finished_B=tables.finished_B,
        texts=tuple(texts),
        alternatives=None if tables.alternatives is None else tables.alternatives.on_cpu(),
    )
