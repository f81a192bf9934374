"""Sample the episodes of a batch, token by token: see `episode_rows` for how a row continues after a turn.

Tensor suffixes: B rows, R rows still being sampled, S rows that sample a token, T tokens, V vocabulary.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace

import torch

from egpo.config.schema import Rollout
from egpo.environments import EpisodeThreads
from egpo.environments.episodes import TurnOutcome
from egpo.errors import InputError
from egpo.local.draws import Draws
from egpo.local.models.caches import compacted
from egpo.local.models.policy import Policy
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
    policy, tables, uniform_BT = request.policy, request.tables, request.uniform_BT
    slots, hidden_RD = prefill(request, rows)
    queue = RowQueue.of(len(rows))
    for row in rows:
        _draw(request, episodes, row)
    token_R = torch.zeros(len(rows), dtype=torch.long, device=policy.device)
    while rows:
        raise_if_cancelled()
        if queue.wait_for_all():
            _take_answers(request, episodes, rows, queue, range(len(rows)))
        over = [episodes.rows[row].episode.ending != "" for row in rows]
        if any(over):
            kept = compacted(~torch.tensor(over, device=policy.device))
            slots.keep(kept)
            places = kept.tolist()
            queue.keep(places)
            rows, token_R, hidden_RD = [rows[place] for place in places], token_R[kept], hidden_RD[kept]
            continue
        waits = [future is not None for future in queue.waiting]
        sampling = [place for place in range(len(rows)) if not waits[place] and not queue.forced[place]]
        fed = [place for place in range(len(rows)) if queue.forced[place]]
        if sampling:
            at = (torch.tensor([rows[place] for place in sampling]), torch.tensor([queue.column[p] for p in sampling]))
            place_S = torch.tensor(sampling, device=policy.device)
            choice = choose(policy.logits(hidden_RD[place_S]), uniform_BT[at].to(policy.device), request.sampling)
            token_R[place_S] = choice.token_R
            here = tuple(index.to(policy.device) for index in at)
            tables.response_BT[here], tables.logp_BT[here] = choice.token_R, choice.logp_R
            tables.entropy_BT[here] = choice.entropy_R
        for place in fed:
            token = queue.forced[place].pop(0)
            token_R[place] = token
            tables.response_BT[rows[place], queue.column[place]] = token
        for place in (*sampling, *fed):
            queue.column[place] += 1
        _end_turns(request, episodes, rows, queue, sampling)
        if any(waits):
            slots.hold(torch.tensor(waits, device=policy.device))
        # The last token of an episode needs no hidden state, but rows that are over are dropped only after this.
        if _all_over(episodes, rows):
            return
        hidden_RD = policy.next_hidden(token_R, slots)


def _all_over(episodes: Episodes, rows: Sequence[int]) -> bool:
    return all(episodes.rows[row].episode.ending for row in rows)


def _draw(request: SampleRequest, episodes: Episodes, row: int) -> None:
    """Write the random numbers of the row's turn to the columns in which it will be sampled."""
    start = episodes.rows[row].start
    uniform_T = episodes.uniforms(row)[: request.new_tokens - start]
    request.uniform_BT[row, start : start + len(uniform_T)] = uniform_T


def _end_turns(
    request: SampleRequest, episodes: Episodes, rows: list[int], queue: RowQueue, sampled: Sequence[int]
) -> None:
    """Hand the turns that have ended to their episodes, and take the answers of those that never wait."""
    tables, stops, answered = request.tables, request.stops, []
    for place in sampled:
        row, end = rows[place], queue.column[place]
        start = episodes.rows[row].start
        written = tables.response_BT[row, start:end].tolist()
        finished = stops.ends(written, request.policy.tokenizer)
        if finished or end - start >= episodes.turn_tokens or end >= request.new_tokens:
            tables.length_B[row], tables.finished_B[row] = end, finished
            queue.waiting[place] = episodes.end_turn(row, written, finished=finished)
            if episodes.rows[row].episode.is_fast:
                answered.append(place)
    _take_answers(request, episodes, rows, queue, answered)


def _take_answers(
    request: SampleRequest, episodes: Episodes, rows: list[int], queue: RowQueue, places: Iterable[int]
) -> None:
    """Queue the tokens of the answers to these rows. A row whose episode is over has none."""
    for place in places:
        future, queue.waiting[place] = queue.waiting[place], None
        assert future is not None
        queue.forced[place] = _continued(request, episodes, rows[place], future, queue.column[place])


def _continued(
    request: SampleRequest, episodes: Episodes, row: int, future: "Future[TurnOutcome]", column: int
) -> list[int]:
    last = int(request.tables.response_BT[row, column - 1])
    forced = episodes.following(row, future.result(), last, column)
    if not episodes.rows[row].episode.ending:
        _draw(request, episodes, row)
    return forced


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
