"""Sample the episodes of a batch, token by token: see `episode_rows` for how a row continues after a turn.

Tensor suffixes: B rows, R rows still being sampled, S rows that sample a token, T tokens, V vocabulary.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

import torch
from torch import Tensor

from egpo.config.schema import Rollout
from egpo.environments import EpisodeThreads, TurnOutcome
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

Prompt = tuple[int, ...]


def sample_episodes(
    policy: Policy, task: Task, problems: Sequence[Problem], settings: Rollout, draws: Draws, tags: tuple[str, str]
) -> Rollouts:
    """Sample `settings.n` episodes of each problem."""
    with EpisodeThreads() as threads:
        episodes = Episodes(policy, task, problems, settings, draws, threads, tags)
        size = (len(episodes.rows), settings.max_response_tokens)
        tables = ResponseTables.empty(size, policy)
        fill = _one_sequence_each if history_of(policy, settings) == "keep" else _one_sample_per_turn
        first_prompts = fill(episodes, tables)
    return _rollouts(episodes, tables, first_prompts, problems)


def _one_sequence_each(episodes: Episodes, tables: ResponseTables) -> list[Prompt]:
    """Sample every episode as one sequence, which the environment's tokens are part of. Return each row's prompt."""
    settings = episodes.settings
    first_prompts = _first_prompts(episodes, "an episode", settings.max_response_tokens)
    prompts, prompt_B = _distinct(first_prompts)
    uniform_BT = torch.zeros(len(prompt_B), settings.max_response_tokens, dtype=torch.float64)
    request = SampleRequest(episodes.policy, prompts, prompt_B, settings, uniform_BT, tables)
    decoder = cuda_decoder(episodes.policy)
    if decoder is not None:
        from egpo.local.sampling.cuda.decode_episodes import fill_by_graphs

        fill_by_graphs(decoder, request, episodes)
        return first_prompts
    parts = split_rows(*request.groups, num_worker_threads(episodes.policy))
    parallel_map(lambda rows: _sample_rows(request, episodes, rows), parts)
    return first_prompts


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


def _one_sample_per_turn(episodes: Episodes, tables: ResponseTables) -> list[Prompt]:
    """Sample round by round: the next turn of every episode that goes on, from the conversation as it is then.

    Return each row's first prompt.
    """
    first_prompts = _first_prompts(episodes, "a turn", episodes.turn_tokens)
    prompts = dict(enumerate(first_prompts))
    live = [row for row in prompts if not episodes.starts[row].ending]
    while live:
        futures: dict[int, Future[TurnOutcome]] = {}
        for rows, width in _parts_of_round(episodes, prompts, live):
            futures |= _sample_turns(episodes, tables, {row: prompts[row] for row in rows}, width)
        for row, future in futures.items():
            if future.result().goes_on:
                state = episodes.rows[row]
                state.turn, state.start = state.turn + 1, int(tables.length_B[row])
                prompts[row], left = episodes.prompt(row, history=True), _tokens_of_turn(episodes, row)
                if left < 1 or len(prompts[row]) + left > episodes.policy.context:
                    state.episode.stop("token_limit")
        live = [row for row in live if not episodes.rows[row].episode.ending]
    return first_prompts


def _tokens_of_turn(episodes: Episodes, row: int) -> int:
    """Return the most tokens of a row's current turn: a function of the row alone."""
    return min(episodes.turn_tokens, episodes.settings.max_response_tokens - episodes.rows[row].start)


def _parts_of_round(
    episodes: Episodes, prompts: Mapping[int, Prompt], live: Sequence[int]
) -> Iterator[tuple[list[int], int]]:
    """Split the rows so that the most tokens of a turn of any row of a part fit the context after all its prompts.

    Yield each part with that number. There is one part unless some prompts are nearly as long as the context.
    """
    left = list(live)
    while left:
        width = max(_tokens_of_turn(episodes, row) for row in left)
        part = [row for row in left if len(prompts[row]) + width <= episodes.policy.context]
        yield part, width
        left = [row for row in left if row not in part]


def _sample_turns(
    episodes: Episodes, tables: ResponseTables, prompts: Mapping[int, Prompt], width: int
) -> "dict[int, Future[TurnOutcome]]":
    """Sample the current turn of these rows, write it to their tables, and hand it to their episodes."""
    policy = episodes.policy
    distinct, index_R = _distinct(list(prompts.values()))
    # Rows of one prompt must be adjacent.
    order = sorted(zip(index_R, prompts, strict=True))
    rows = [row for _, row in order]
    uniform_RT = torch.stack([episodes.uniforms(row)[:width] for row in rows]).to(policy.device)
    turn = ResponseTables.empty((len(rows), width), policy)
    fill_tables(SampleRequest(policy, distinct, [index for index, _ in order], episodes.settings, uniform_RT, turn))
    futures = {}
    for place, row in enumerate(rows):
        state, sampled = episodes.rows[row], int(turn.length_B[place])
        length = min(sampled, _tokens_of_turn(episodes, row))
        columns, own = slice(state.start, state.start + length), slice(0, length)
        tables.response_BT[row, columns] = turn.response_BT[place, own]
        tables.logp_BT[row, columns] = turn.logp_BT[place, own]
        tables.entropy_BT[row, columns] = turn.entropy_BT[place, own]
        finished = bool(turn.finished_B[place]) and length == sampled
        tables.length_B[row], tables.finished_B[row] = state.start + length, finished
        state.prompts.append(prompts[row])
        futures[row] = episodes.end_turn(row, turn.response_BT[place, own].tolist(), finished=finished)
    return futures


def _distinct(prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[int]]:
    """Return the prompts without repetitions, and the index of each one among them."""
    index = {prompt: place for place, prompt in enumerate(dict.fromkeys(prompts))}
    return list(index), [index[prompt] for prompt in prompts]


def _first_prompts(episodes: Episodes, what: str, max_tokens: int) -> list[Prompt]:
    """Return the prompt of each row. InputError if one leaves no room for `what`, which has up to `max_tokens`."""
    prompts, context = [episodes.prompt(row) for row in range(len(episodes.rows))], episodes.policy.context
    for row, prompt in enumerate(prompts):
        room = context - len(prompt)
        if max_tokens > room:
            setting = "rollout.max_response_tokens" if what == "an episode" else "rollout.episodes.max_turn_tokens"
            fix = f"lower {setting} to {room} or less" if room > 0 else "use problems with shorter prompts"
            raise InputError(
                f"a prompt of {len(prompt)} tokens and {what} of {max_tokens} do not fit the context of {context}",
                where=f"problem {episodes.rows[row].key.rpartition(chr(10))[0][:80]}",
                fix=fix,
            )
    return prompts


def _rollouts(
    episodes: Episodes, tables: ResponseTables, prompt_B: Sequence[Prompt], problems: Sequence[Problem]
) -> Rollouts:
    """Return the episodes as rollouts. Rows whose environment could not start have no tokens."""
    policy, n = episodes.policy, episodes.settings.n
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
