"""Which rows each core samples. P problems, G rows of each.

Sampling: groups of responses, with the log-probability and the exact entropy of every token recorded on the way.

P problems, B rows, R rows still going, T tokens, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from egpo.config.schema import Rollout
from egpo.errors import warn_once
from egpo.local.draws import Draws
from egpo.local.memory import OUT_OF_MEMORY, is_out_of_memory
from egpo.local.models.caches import compacted
from egpo.local.models.packs import Sequences, pack_groups
from egpo.local.models.policy import AnySlots, Policy
from egpo.local.models.prompts import prompt_tokens, require_room
from egpo.local.rollouts import Rollouts
from egpo.local.sampling.choose import Choice, Sampling, Stops, choose
from egpo.local.threads import num_sides, require_wanted, side_by_side
from egpo.tasks import Problem, Task

_FEWEST_ROWS = 8
"""For a core of its own: fewer take nearly as long as these."""


def row_shares(num_problems: int, group: int, sides: int) -> list[list[int]]:
    """At most `sides` shares of rows 0 to P * G, in order and of like size. Whole groups, so that a prompt is computed
    once; where there are fewer groups than sides, groups are cut."""
    num_rows = num_problems * group
    num_shares = max(1, min(sides, num_rows // _FEWEST_ROWS))
    unit = group if num_problems >= num_shares else 1
    bounds = [unit * (num_rows // unit * share // num_shares) for share in range(num_shares + 1)]
    return [list(range(first, last)) for first, last in pairwise(bounds)]


@torch.no_grad()
def sample(policy: Policy, task: Task, problems: Sequence[Problem], settings: Rollout, draws: Draws) -> Rollouts:
    """`settings.n` responses to each problem. What a row says depends on its problem and its draws alone."""
    prompts = prompt_tokens(policy, task, problems)
    for problem, prompt in zip(problems, prompts, strict=True):
        require_room(policy, problem, len(prompt), settings.max_response_tokens)
    keys = [problem.key for problem in problems]
    uniform_BT = draws.uniforms(keys, settings.n, settings.max_response_tokens).to(policy.device)
    tables = _Tables(len(problems) * settings.n, settings.max_response_tokens, policy)
    batch = _Batch(policy, prompts, settings, uniform_BT, tables)
    if policy.decoder is not None:
        from egpo.local.sampling.cuda.decoder import fill

        fill(policy.decoder, batch, list(range(len(problems) * settings.n)))
    else:
        shares = row_shares(len(problems), settings.n, num_sides(policy))
        rows_at_once = None if settings.rows_at_once is None else max(1, settings.rows_at_once // len(shares))
        side_by_side(lambda rows: _fill(batch, rows, rows_at_once), shares)
    return tables.rollouts(policy, problems, prompts, batch.prompt_B)


@dataclass(frozen=True, eq=False)
class _Batch:
    """All rows of a call, whichever of them are sampled together."""

    policy: Policy
    prompts: Sequence[tuple[int, ...]]
    settings: Rollout
    uniform_BT: Tensor
    tables: "_Tables"

    @property
    def prompt_B(self) -> list[int]:
        return [index for index in range(len(self.prompts)) for _ in range(self.settings.n)]

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.settings.temperature, self.settings.top_p, self.settings.top_k, self.settings.min_p)

    @property
    def stops(self) -> Stops:
        return Stops(self.policy.stop_ids | set(self.settings.stop_tokens), self.settings.stop)


class _Tables:
    """Where rows write what they sampled, each in its place."""

    def __init__(self, num_rows: int, num_tokens: int, policy: Policy) -> None:
        size, device = (num_rows, num_tokens), policy.device
        self.response_BT = torch.full(size, policy.pad_id, dtype=torch.long, device=device)
        self.logp_BT = torch.zeros(size, device=device)
        self.entropy_BT = torch.zeros(size, device=device)
        self.length_B = torch.zeros(num_rows, dtype=torch.long, device=device)
        self.finished_B = torch.zeros(num_rows, dtype=torch.bool, device=device)

    def write(self, row_R: Tensor, step: int, choice: Choice) -> None:
        self.response_BT[row_R, step] = choice.token_R
        self.logp_BT[row_R, step] = choice.logp_R
        self.entropy_BT[row_R, step] = choice.entropy_R
        self.length_B[row_R] = step + 1

    def written(self, row_R: Tensor, step: int) -> list[list[int]]:
        rows: list[list[int]] = self.response_BT[row_R, : step + 1].tolist()
        return rows

    def rollouts(
        self, policy: Policy, problems: Sequence[Problem], prompts: Sequence[tuple[int, ...]], prompt_B: list[int]
    ) -> Rollouts:
        longest = int(self.length_B.max())
        mask_BT = torch.arange(longest, device=policy.device) < self.length_B[:, None]
        rows = zip(self.response_BT.tolist(), self.length_B.tolist(), strict=True)
        texts = policy.tokenizer.batch_decode([row[:length] for row, length in rows], skip_special_tokens=True)
        return Rollouts(
            problems=tuple(problems),
            prompts=tuple(prompts),
            problem_B=torch.tensor(prompt_B),
            response_BT=self.response_BT[:, :longest],
            mask_BT=mask_BT,
            # A row that was begun again after memory ran out has left values past its end.
            logp_BT=self.logp_BT[:, :longest] * mask_BT,
            entropy_BT=self.entropy_BT[:, :longest] * mask_BT,
            finished_B=self.finished_B,
            texts=tuple(texts),
        )


def _fill(batch: _Batch, rows: list[int], rows_at_once: int | None) -> None:
    """As many rows at once as asked for, or as fit: since rows are independent, halves give what the whole would."""
    at_once = rows_at_once or len(rows)
    parts = [rows[first : first + at_once] for first in range(0, len(rows), at_once)]
    while parts:
        if not _fits(batch, parts[0]):
            half = len(parts[0]) // 2
            parts[:1] = [parts[0][:half], parts[0][half:]]
        else:
            parts.pop(0)


def _fits(batch: _Batch, rows: list[int]) -> bool:
    try:
        _sample_rows(batch, rows)
    except OUT_OF_MEMORY as error:
        if not is_out_of_memory(error) or len(rows) == 1:
            raise
        warn_once(
            "rows at once", f"out of memory sampling {len(rows)} rows at once; half as many (rollout.rows_at_once)"
        )
        return False
    return True


def _sample_rows(batch: _Batch, rows: list[int]) -> None:
    """One token a row at a time, until every row is over. Rows that are over leave."""
    policy, tables, sampling, stops = batch.policy, batch.tables, batch.sampling, batch.stops
    slots, hidden_RD = _prefill(batch, rows)
    row_R = torch.tensor(rows, device=policy.device)
    for step in range(batch.settings.max_response_tokens):
        require_wanted()
        choice = choose(policy.logits(hidden_RD), batch.uniform_BT[row_R, step], sampling)
        tables.write(row_R, step, choice)
        over_R = stops.over(choice.token_R, tables.written(row_R, step) if stops.strings else (), policy.tokenizer)
        tables.finished_B[row_R] = over_R
        token_R = choice.token_R
        if bool(over_R.any()):
            kept = compacted(~over_R)
            slots.keep(kept)
            row_R, token_R = row_R[kept], token_R[kept]
        if not len(row_R) or step + 1 == batch.settings.max_response_tokens:
            return
        hidden_RD = policy.next_hidden(token_R, slots)


def _prefill(batch: _Batch, rows: list[int]) -> tuple[AnySlots, Tensor]:
    """Each prompt once, shared by its rows: their slots, and the hidden states that predict their first tokens."""
    device, prompt_B = batch.policy.device, batch.prompt_B
    needed = sorted({prompt_B[row] for row in rows})
    pack = pack_groups([Sequences(batch.prompts[prompt]) for prompt in needed], device)
    slots = batch.policy.open_slots()
    hidden_ND = batch.policy.hidden(pack, slots)
    place_R = [needed.index(prompt_B[row]) for row in rows]
    slots.spread(pack.layout, place_R, batch.settings.max_response_tokens)
    last_R = torch.tensor([pack.layout.groups[place].responses_start - 1 for place in place_R], device=device)
    return slots, hidden_ND[last_R]
