"""Sample episodes: turns of the assistant, and between them what the environment says.

An episode is one row: the prompt, then sampled turns with the tokens of tool results and of the user between them.
Those tokens are the chat template's own, and are fed to the model one by one as if they had been sampled (`forced`), so
that the cache of a row is never computed again. Tools of the package's own environments answer at once. A row that
waits for another tool repeats its last token while the others finish their turns; then all that wait go on together. So
batches do not depend on the clock. What a row samples depends on its problem, its environment and its random numbers,
which are a function of problem, sample, turn and position in the turn.

If the chat template rewrites earlier turns, and `rollout.episodes.history` does not say `keep`, each turn is sampled
with a prompt of its own, round by round.

Tensor suffixes: B rows, R rows still being sampled, S rows that sample a token, T tokens, V vocabulary.
"""

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from egpo.chat_templates import render
from egpo.chat_turns import History, following_text, rewrites_history
from egpo.config.schema import Rollout
from egpo.environments import Episode, EpisodeLimits, EpisodeThreads
from egpo.environments.episodes import EpisodeStart, TurnOutcome
from egpo.errors import notify_once
from egpo.local.draws import Draws, occurrences
from egpo.local.models.policy import Policy
from egpo.local.rollouts import EpisodeRow
from egpo.local.threads import raise_if_cancelled
from egpo.tags import opens_thinking
from egpo.tasks import Problem, Task
from egpo.tasks.episodes import environment_row, host_of

_LOOK_S = 0.5


def history_of(policy: Policy, settings: Rollout) -> History:
    """Return how episodes are sampled with the policy's chat template, and print it once."""
    chosen, why = settings.episodes.history, "as set"
    if chosen == "auto":
        rewrites = rewrites_history(policy.tokenizer, variables=policy.template)
        chosen = "per_turn" if rewrites else "keep"
        why = f"the chat template {'rewrites earlier turns' if rewrites else 'leaves earlier turns as they are'}"
    what = "each turn is a sample of its own" if chosen == "per_turn" else "an episode is one sequence"
    notify_once(f"episodes: {what} (rollout.episodes.history={chosen}: {why})")
    return chosen


@dataclass
class EpisodeState:
    """One row of `Episodes`: its episode, its turns so far, and the prompt of its current turn."""

    episode: Episode
    key: str
    sample: int
    turn: int = 0
    start: int = 0
    opened: bool = False
    turns: list[tuple[int, int]] = field(default_factory=list)
    opened_turns: list[bool] = field(default_factory=list)
    prompts: list[tuple[int, ...]] = field(default_factory=list)


@dataclass(frozen=True)
class TurnOpening:
    """The tokens before a turn of the assistant, and whether they end with the opening thinking tag."""

    tokens: tuple[int, ...]
    thinks: bool


class Episodes:
    """The episodes of one call of the sampler. Row b is sample b % n of problem b // n."""

    def __init__(
        self,
        policy: Policy,
        task: Task,
        problems: Sequence[Problem],
        settings: Rollout,
        draws: Draws,
        threads: EpisodeThreads,
        tags: tuple[str, str],
    ) -> None:
        self.policy, self.settings, self.threads, self._draws, self._tags = policy, settings, threads, draws, tags
        self._openings: dict[bytes, TurnOpening] = {}
        limits = EpisodeLimits.of(settings.episodes)
        keys = occurrences([problem.key for problem in problems])

        def opened(problem: Problem) -> Episode:
            return Episode(host_of(task, problem), environment_row(problem), limits, tags=tags)

        self._opened = [partial(opened, problem) for problem in problems for _ in range(settings.n)]
        self.rows = [
            EpisodeState(self._opened[place * settings.n + sample](), key, sample)
            for place, key in enumerate(keys)
            for sample in range(settings.n)
        ]
        started = [threads.start(row.episode) for row in self.rows]
        self.starts: list[EpisodeStart] = [future.result() for future in started]

    def restart(self, rows: Sequence[int]) -> None:
        """Begin these episodes again, each in a new instance of its environment, unless no turn was taken yet."""
        for row in rows:
            state = self.rows[row]
            if state.turns:
                state.episode.stop()
                self.rows[row] = EpisodeState(self._opened[row](), state.key, state.sample)
                self.starts[row] = self.threads.start(self.rows[row].episode).result()
                self.prompt(row)

    @property
    def turn_tokens(self) -> int:
        """The largest number of tokens of one turn."""
        chosen = self.settings.episodes.max_turn_tokens
        return min(chosen or self.settings.max_response_tokens, self.settings.max_response_tokens)

    def prompt(self, row: int, *, history: bool = False) -> tuple[int, ...]:
        """Return the token ids of an episode's prompt; with `history`, of the whole conversation so far."""
        state, start = self.rows[row], self.starts[row]
        messages = list(start.messages)
        if history:
            for turn in state.episode.turns:
                messages += [{"role": "assistant", "content": turn.text}, *turn.messages]
        if not messages:  # the environment could not start: nothing is sampled, and the row needs some prompt
            messages = [{"role": "user", "content": "-"}]
        tokenizer, tools, variables = self.policy.tokenizer, start.template_tools, self.policy.template
        opening = self._opening(
            repr((messages, tools)), lambda: render(tokenizer, messages, tools=tools, variables=variables)
        )
        state.opened = opening.thinks
        return opening.tokens

    def uniforms(self, row: int) -> Tensor:
        """Return the random numbers of the row's current turn."""
        state = self.rows[row]
        return self._draws.of_turn(state.key, state.sample, state.turn, self.turn_tokens)

    def end_turn(self, row: int, tokens: Sequence[int], *, finished: bool) -> "Future[TurnOutcome]":
        """Hand a sampled turn to its episode. `finished`: it ended with a stop token or string."""
        state = self.rows[row]
        text = self.policy.tokenizer.decode(tokens, skip_special_tokens=True)
        state.turns.append((state.start, state.start + len(tokens)))
        state.opened_turns.append(state.opened)
        return self.threads.assistant(state.episode, text, not finished, opened=state.opened)

    def following(self, row: int, outcome: TurnOutcome, last: int, used: int) -> list[int]:
        """Return the tokens that follow a turn and begin the next one; none if the episode is over.

        `last` is the last token of the turn, and `used` the number of tokens of the row so far.
        """
        state = self.rows[row]
        if not outcome.goes_on:
            return []
        before, new, tools = self.starts[row].messages, outcome.messages, self.starts[row].template_tools
        tokenizer, variables = self.policy.tokenizer, self.policy.template
        opening = self._opening(
            repr((before, new, tools)),
            lambda: following_text(tokenizer, before, new, tools=tools, variables=variables),
        )
        # The end of the turn, which the template writes too, may have been sampled.
        tokens = opening.tokens[1:] if opening.tokens[0] == last else opening.tokens
        if used + len(tokens) >= self.settings.max_response_tokens:
            state.episode.stop("token_limit")
            return []
        state.turn, state.start, state.opened = state.turn + 1, used + len(tokens), opening.thinks
        return list(tokens)

    def row(self, row: int) -> EpisodeRow:
        """Return the finished episode of a row."""
        state = self.rows[row]
        record = state.episode.record()
        prompts = tuple(state.prompts) if state.prompts else None
        return EpisodeRow(record, tuple(state.turns), tuple(state.opened_turns), prompts)

    def _opening(self, what: str, write: Callable[[], str]) -> "TurnOpening":
        """Return the opening that `write` writes, once for all rows with the same `what`: rendering takes as long as
        sampling some tokens of a row, and the rows of a problem often begin alike and get the same answers."""
        digest = hashlib.blake2b(what.encode(errors="surrogatepass"), digest_size=16).digest()
        if digest not in self._openings:
            text = write()
            tokens = self.policy.tokenizer(text, add_special_tokens=False)["input_ids"]
            self._openings[digest] = TurnOpening(tuple(tokens), opens_thinking(text, self._tags))
        return self._openings[digest]


@dataclass(eq=False)
class RowQueue:
    """The rows of a cache, by place, and what each does next.

    `forced`: the tokens to feed. `waiting`: the tool that the row waits for. `token` is its newest token, `column` the
    number of its tokens, and `limit` this number at which its turn ends at the latest.
    """

    rows: list[int]
    forced: list[list[int]]
    waiting: "list[Future[TurnOutcome] | None]"
    token: list[int]
    column: list[int]
    limit: list[int]

    @classmethod
    def of(cls, rows: list[int]) -> "RowQueue":
        zeros = [0] * len(rows)
        return cls(rows, [[] for _ in rows], [None] * len(rows), zeros.copy(), zeros.copy(), zeros.copy())

    def keep(self, places: Sequence[int]) -> None:
        """Keep the rows at these places, in this order."""
        for name, values in vars(self).items():
            setattr(self, name, [values[place] for place in places])

    def wait_for_all(self) -> bool:
        """If every row waits for a tool, wait until all have answered. Return whether they have."""
        pending = [future for future in self.waiting if future is not None]
        if not pending or len(pending) < len(self.waiting):
            return False
        while wait(pending, timeout=_LOOK_S).not_done:
            raise_if_cancelled()
        return True
