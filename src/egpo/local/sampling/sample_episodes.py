"""Sample the episodes of a batch, token by token: see `episode_rows` for how a row continues after a turn.

Tensor suffixes: B rows, R rows still being sampled, S rows that sample a token, T tokens, V vocabulary.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from egpo.config.schema import Rollout
from egpo.environments import EpisodeThreads
from egpo.errors import InputError
from egpo.local.draws import Draws
from egpo.local.models.caches import compacted
from egpo.local.models.policy import AnySlots, Policy
from egpo.local.rollouts import Rollouts
from egpo.local.sampling.choose import ResponseTables, choose
from egpo.local.sampling.episode_rows import Episodes, RowQueue, history_of
from egpo.local.sampling.sample import SampleRequest, cuda_decoder, fill_tables, prefill, split_rows
from egpo.local.threads import num_worker_threads, parallel_map, raise_if_cancelled
from egpo.tasks import Problem, Task


def sample_episodes(
    policy: Policy, task: Task, problems: Sequence[Problem], settings: Rollout, draws: Draws, tags: tuple[str, str]
) -> Rollouts:
    """Sample `settings.n` episodes of each problem."""
    with EpisodeThreads() as threads:
        episodes = Episodes(policy, task, problems, settings, draws, threads, tags)
        size = (len(episodes.rows), settings.max_response_tokens)
        tables = ResponseTables.empty(size, policy)
        if history_of(policy, settings) == "keep":
            request = _one_sequence_each(episodes, tables)
        else:
            request = _one_sample_per_turn(episodes, tables)
    return _rollouts(episodes, request, problems)


def _one_sequence_each(episodes: Episodes, tables: ResponseTables) -> SampleRequest:
    """Sample every episode as one sequence, which the environment's tokens are part of."""
    prompts, prompt_B = _distinct([episodes.prompt(row) for row in range(len(episodes.rows))])
    settings = episodes.settings
    for prompt in prompts:
        _require_room(episodes, len(prompt), settings.max_response_tokens)
    uniform_BT = torch.zeros(len(prompt_B), settings.max_response_tokens, dtype=torch.float64)
    request = SampleRequest(episodes.policy, prompts, prompt_B, settings, uniform_BT, tables)
    decoder = cuda_decoder(episodes.policy)
    if decoder is not None:
        from egpo.local.sampling.cuda.decode_episodes import fill_by_graphs

        fill_by_graphs(decoder, request, episodes)
        return request
    parts = split_rows(*request.groups, num_worker_threads(episodes.policy))
    parallel_map(lambda rows: _sample_rows(request, episodes, rows), parts)
    return request


def _sample_rows(request: SampleRequest, episodes: Episodes, rows: list[int]) -> None:
    """Sample the episodes of these rows, one token of every row at a time, until all are over."""
    rows = [row for row in rows if not episodes.starts[row].ending]
    if not rows:
        return
    device = request.policy.device
    slots, hidden_RD = prefill(request, rows)
    queue = RowQueue.of(rows)
    for place in range(len(rows)):
        _open_turn(request, episodes, queue, place)
    while True:
        raise_if_cancelled()
        if queue.wait_for_all():
            _take_answers(request, episodes, queue, range(len(queue.rows)))
            kept = _drop_over(episodes, queue, slots, device)
            hidden_RD = hidden_RD if kept is None else hidden_RD[kept]
            if not queue.rows:
                return
        waits = [future is not None for future in queue.waiting]
        sampling = [place for place, waiting in enumerate(waits) if not waiting and not queue.forced[place]]
        for place, forced in enumerate(queue.forced):
            if forced:
                queue.token[place] = forced.pop(0)
                queue.column[place] += 1
        if sampling:
            _choose_tokens(request, queue, sampling, hidden_RD)
            _end_turns(request, episodes, queue, sampling)
        if any(waits):
            slots.hold(torch.tensor(waits, device=device))
        _drop_over(episodes, queue, slots, device)
        if not queue.rows:
            return
        hidden_RD = request.policy.next_hidden(torch.tensor(queue.token, device=device), slots)


def _choose_tokens(request: SampleRequest, queue: RowQueue, sampling: Sequence[int], hidden_RD: Tensor) -> None:
    """Choose the next token of the rows at these places."""
    policy, tables, device = request.policy, request.tables, hidden_RD.device
    if len(sampling) < len(hidden_RD):
        hidden_RD = hidden_RD[torch.tensor(sampling, device=device)]
    at = torch.tensor([[queue.rows[place] for place in sampling], [queue.column[place] for place in sampling]])
    uniform_S = request.uniform_BT[at[0], at[1]].to(device)
    choice = choose(policy.logits(hidden_RD), uniform_S, request.sampling)
    row_S, column_S = at.to(device)
    tables.response_BT[row_S, column_S], tables.logp_BT[row_S, column_S] = choice.token_R, choice.logp_R
    tables.entropy_BT[row_S, column_S] = choice.entropy_R
    for place, token in zip(sampling, choice.token_R.tolist(), strict=True):
        queue.token[place] = token
        queue.column[place] += 1


def _drop_over(episodes: Episodes, queue: RowQueue, slots: AnySlots, device: torch.device) -> Tensor | None:
    """Drop the rows whose episodes are over. Return the old places of the others; None if all are left."""
    over = [episodes.rows[row].episode.ending != "" for row in queue.rows]
    if not any(over):
        return None
    kept = compacted(~torch.tensor(over, device=device))
    slots.keep(kept)
    queue.keep(kept.tolist())
    return kept


def _open_turn(request: SampleRequest, episodes: Episodes, queue: RowQueue, place: int) -> None:
    """Set the limit of a row's turn, and write its random numbers to the columns in which it will be sampled."""
    row = queue.rows[place]
    start = episodes.rows[row].start
    queue.limit[place] = min(start + episodes.turn_tokens, request.new_tokens)
    request.uniform_BT[row, start : queue.limit[place]] = episodes.uniforms(row)[: queue.limit[place] - start]


def _end_turns(request: SampleRequest, episodes: Episodes, queue: RowQueue, sampled: Sequence[int]) -> None:
    """Hand the turns that have ended to their episodes, and take the answers of those that never wait."""
    tables, stops, answered = request.tables, request.stops, []
    for place in sampled:
        row, end = queue.rows[place], queue.column[place]
        finished = queue.token[place] in stops.ids
        if not (finished or stops.strings or end == queue.limit[place]):
            continue
        written = tables.response_BT[row, episodes.rows[row].start : end].tolist()
        finished = finished or stops.ends(written, request.policy.tokenizer)
        if finished or end == queue.limit[place]:
            tables.length_B[row], tables.finished_B[row] = end, finished
            queue.waiting[place] = episodes.end_turn(row, written, finished=finished)
            if episodes.rows[row].episode.is_fast:
                answered.append(place)
    _take_answers(request, episodes, queue, answered)


def _take_answers(request: SampleRequest, episodes: Episodes, queue: RowQueue, places: Iterable[int]) -> None:
    """Queue the tokens of the answers to these rows. A row whose episode is over has none."""
    for place in places:
        future, queue.waiting[place] = queue.waiting[place], None
        assert future is not None
        row, column = queue.rows[place], queue.column[place]
        forced = episodes.following(row, future.result(), queue.token[place], column)
        if not episodes.rows[row].episode.ending:
            request.tables.response_BT[row, column : column + len(forced)] = torch.tensor(forced, dtype=torch.long)
            queue.forced[place] = forced
            _open_turn(request, episodes, queue, place)


def _one_sample_per_turn(episodes: Episodes, tables: ResponseTables) -> SampleRequest:
    """Sample round by round: the next turn of every episode that goes on, from the conversation as it is then."""
    settings, policy = episodes.settings, episodes.policy
    live = [row for row in range(len(episodes.rows)) if not episodes.starts[row].ending]
    first_prompts = [episodes.prompt(row) for row in range(len(episodes.rows))]
    prompts = {row: first_prompts[row] for row in live}
    while live:
        distinct, prompt_R = _distinct([prompts[row] for row in live])
        width = min(episodes.turn_tokens, policy.context - max(map(len, distinct)))
        uniform_RT = torch.stack([episodes.uniforms(row)[:width] for row in live]).to(policy.device)
        turn = ResponseTables.empty((len(live), width), policy)
        order = sorted(range(len(live)), key=lambda place: prompt_R[place])  # rows of one prompt must be adjacent
        request = SampleRequest(policy, distinct, [prompt_R[i] for i in order], settings, uniform_RT[order], turn)
        fill_tables(request)
        futures = {}
        for place, index in enumerate(order):
            row, state = live[index], episodes.rows[live[index]]
            end = state.start + int(turn.length_B[place])
            limit = min(end, settings.max_response_tokens)
            columns, own = slice(state.start, limit), slice(0, limit - state.start)
            tables.response_BT[row, columns] = turn.response_BT[place, own]
            tables.logp_BT[row, columns] = turn.logp_BT[place, own]
            tables.entropy_BT[row, columns] = turn.entropy_BT[place, own]
            finished = bool(turn.finished_B[place]) and limit == end
            tables.length_B[row], tables.finished_B[row] = limit, finished
            state.prompts.append(prompts[row])
            tokens = turn.response_BT[place, own].tolist()
            futures[row] = episodes.end_turn(row, tokens, finished=finished)
        for row, future in futures.items():
            state = episodes.rows[row]
            if future.result().goes_on:
                used = int(tables.length_B[row])
                prompts[row] = episodes.prompt(row, history=True)
                if used >= settings.max_response_tokens or len(prompts[row]) >= policy.context:
                    state.episode.stop("token_limit")
                state.turn, state.start = state.turn + 1, used
        live = [row for row in live if not episodes.rows[row].episode.ending]
    distinct, prompt_B = _distinct(first_prompts)
    return SampleRequest(policy, distinct, prompt_B, settings, tables.logp_BT.double(), tables)


def _distinct(prompts: Sequence[tuple[int, ...]]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the prompts without repetitions, and the index of each one among them."""
    index = {prompt: place for place, prompt in enumerate(dict.fromkeys(prompts))}
    return list(index), [index[prompt] for prompt in prompts]


def _require_room(episodes: Episodes, num_tokens: int, max_tokens: int) -> None:
    context = episodes.policy.context
    if num_tokens + max_tokens > context:
        what = f"a prompt of {num_tokens} tokens and an episode of {max_tokens} do not fit the context of {context}"
        fix = f"lower rollout.max_response_tokens to {max(1, context - num_tokens)} or less"
        raise InputError(what, where="episode", fix=fix)


def _rollouts(episodes: Episodes, request: SampleRequest, problems: Sequence[Problem]) -> Rollouts:
    """Return the episodes as rollouts. Rows whose environment could not start have no tokens."""
    policy, tables, n = episodes.policy, request.tables, episodes.settings.n
    prompt_B = [request.prompts[index] for index in request.prompt_B]
    rows = []
    for row, prompt in enumerate(prompt_B):
        shared = prompt_B[row - row % n]
        rows.append(replace(episodes.row(row), prompt=None if prompt == shared else prompt))
    longest = max(1, int(tables.length_B.max()))
    mask_BT = torch.zeros(len(rows), longest, dtype=torch.bool)
    for row, one in enumerate(rows):
        for start, end in one.turns:
            mask_BT[row, start:end] = True
    mask_BT = mask_BT.to(policy.device)
    return Rollouts(
        problems=tuple(problems),
        prompts=tuple(prompt_B[::n]),
        problem_B=torch.arange(len(problems)).repeat_interleave(n),
        response_BT=tables.response_BT[:, :longest],
        mask_BT=mask_BT,
        logp_BT=tables.logp_BT[:, :longest] * mask_BT,
        entropy_BT=tables.entropy_BT[:, :longest] * mask_BT,
        finished_B=tables.finished_B,
        texts=tuple("\n\n".join(turn.text for turn in one.record.turns) for one in rows),
        episodes=tuple(rows),
    )
