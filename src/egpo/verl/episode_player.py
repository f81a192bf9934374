"""Episodes with the tokens of a sampling server: what the agent loop `egpo` does, without verl.

A row of the data file names its environment (`EpisodeSpec`, JSON in `extra_info["episode"]`). `EpisodePlayer` plays it:
sampled ids are never tokenised again, what follows a turn is the chat template's own text, and every step of the
environment is taken in a thread, so that the event loop of verl's worker never waits for a tool.
"""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from egpo.chat_templates import render
from egpo.chat_turns import following_text, following_tokens, rewrites_history
from egpo.config import Config
from egpo.config.sections.training import EpisodeSettings
from egpo.environments import EnvironmentHost, Episode, EpisodeLimits, EpisodeRecord, EpisodeStart
from egpo.environments.records import episode_verdicts
from egpo.environments.table import absolute_name
from egpo.errors import InputError, warn_once
from egpo.tags import opens_thinking
from egpo.tasks import Problem, Task
from egpo.tasks.episodes import environment_of, environment_row

AGENT_NAME = "egpo"
"""The agent loop's name in verl: the value of the column `agent_name`."""
COLUMN = "episode"
"""The key of `extra_info` that has the row's `EpisodeSpec`, and of verl's `extra_fields` that has the record."""
NUM_THREADS = 64
KEEP = "rollout.episodes.history=keep (under verl's own command algorithm.egpo.episodes.history=keep)"


@dataclass(frozen=True)
class EpisodeSpec:
    """Which environment a row is played in, and the row that its `reset` gets."""

    environment: str
    row: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    reward: str | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_row(cls, extra_info: Any) -> "EpisodeSpec":
        """Read the column `extra_info` of a row. InputError if it has no episode."""
        try:
            return cls(**json.loads(extra_info[COLUMN]))
        except (TypeError, KeyError, ValueError) as error:
            what = f"the row has no episode that can be read ({type(error).__name__}: {error})"
            fix = f"write `EpisodeSpec(environment, row).to_json()` of egpo.verl.episode_player to extra_info.{COLUMN}"
            raise InputError(what, where=f"agent_name {AGENT_NAME}", fix=fix) from error


def episode_spec(task: Task, problem: Problem) -> EpisodeSpec:
    """Return the environment and the row of a problem, for a task that has environments."""
    name = environment_of(task, problem)
    assert name is not None, "a task of single responses has no environment"
    settings, reward = getattr(task, "environment_settings", {}), getattr(task, "environment_reward", None)
    return EpisodeSpec(absolute_name(name), environment_row(problem), dict(settings), reward)


@dataclass(frozen=True)
class SampledTurn:
    """What the server sampled in one turn. `logps` is None if it did not record them."""

    tokens: Sequence[int]
    logps: Sequence[float] | None = None
    aborted: bool = False


Generate = Callable[[list[int], int], Awaitable[SampledTurn]]
"""Samples one turn: the token ids so far, and the maximum number of new tokens."""


@dataclass(frozen=True, eq=False)
class PlayedEpisode:
    """An episode that is over. `tokens` follow the prompt; `mask` is 1 for those that were sampled.

    `logps` has 0 for the environment's tokens; None if the server recorded none. `finished`: the last turn was ended by
    the model. `num_replies` counts how often the environment answered.
    """

    prompt: list[int]
    tokens: list[int]
    mask: list[int]
    logps: list[float] | None
    record: EpisodeRecord
    finished: bool
    num_replies: int

    @property
    def reward_information(self) -> dict[str, float | str]:
        """What our rewards return: score, correctness, failure, reason, and who judged."""
        verdict = self.record.verdict
        return {
            "score": float(verdict.reward),
            "acc": float(verdict.correct),
            "failed": float(verdict.failed),
            "reason": verdict.reason,
            "judged_by": self.record.environment,
        }


@dataclass(eq=False)
class _Playing:
    """An episode in progress."""

    episode: Episode
    start: EpisodeStart
    prompt: list[int]
    opened: bool
    tokens: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    has_logps: bool = True
    finished: bool = False
    num_replies: int = 0


class EpisodePlayer:
    """Plays the episodes of one process. Limits are those of the recipe's section `rollout.episodes`.

    `stop_ids`: the tokens that end a turn. `variables` are those of the chat template. `num_workers`: the most worker
    processes of an outside environment.
    """

    def __init__(
        self,
        tokenizer: Any,
        settings: EpisodeSettings,
        tags: tuple[str, str],
        *,
        max_prompt_tokens: int,
        max_response_tokens: int,
        stop_ids: frozenset[int],
        variables: Mapping[str, Any] | None = None,
        num_workers: int | None = None,
    ) -> None:
        self.tokenizer, self._settings, self._tags, self._variables = tokenizer, settings, tags, variables
        self._max_prompt, self._max_response, self._stop_ids = max_prompt_tokens, max_response_tokens, stop_ids
        self._limits, self._num_workers = EpisodeLimits.of(settings), num_workers
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="episode")
        self._hosts: dict[str, EnvironmentHost] = {}
        # A tokenizer is not made for several threads.
        self._hosts_lock, self._tokenizer_lock = threading.Lock(), threading.Lock()
        require_kept_history(tokenizer, settings, variables)

    @classmethod
    def for_measuring(cls, tokenizer: Any, config: Config) -> "EpisodePlayer":
        """Return a player that only measures prompts, with the settings of a recipe."""
        return cls(
            tokenizer,
            config.rollout.episodes,
            config.segments.tags,
            max_prompt_tokens=0,
            max_response_tokens=config.rollout.max_response_tokens,
            stop_ids=frozenset(),
            variables=config.model.template,
        )

    def all_deterministic(self, specs: Iterable[EpisodeSpec]) -> bool:
        return all(self._host(spec).deterministic for spec in specs)

    def prompt_lengths(self, specs: Sequence[EpisodeSpec]) -> list[int]:
        """Return the lengths of the episodes' prompts in tokens.

        EgpoError if none of them can be started; InputError if the chat template refuses what follows a turn.
        """
        started = list(self._threads.map(self._started_once, specs))
        if first := next((one.start for one in started if not one.start.ending), None):
            answer = (
                {"role": "tool", "name": "tool", "content": "-"} if first.tools else {"role": "user", "content": "-"}
            )
            tools = first.template_tools
            following_text(self.tokenizer, first.messages, [answer], tools=tools, variables=self._variables)
        if specs and all(one.start.ending for one in started):
            episode_verdicts([one.episode.record() for one in started])
        return [len(one.prompt) for one in started]

    async def play(self, spec: EpisodeSpec, generate: Generate) -> PlayedEpisode:
        """Play one episode to its end, in an instance of its environment of its own."""
        loop = asyncio.get_running_loop()
        playing = await loop.run_in_executor(self._threads, self._begin, spec)
        try:
            while not playing.episode.ending:
                room = min(self._turn_tokens, self._max_response - len(playing.tokens))
                turn = await generate([*playing.prompt, *playing.tokens], room)
                await loop.run_in_executor(self._threads, self._take, playing, turn, room)
        finally:
            if not playing.episode.ending:  # the server raised: the instance is released
                self._threads.submit(playing.episode.stop)
        return self._played(playing)

    def __enter__(self) -> "EpisodePlayer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for host in self._hosts.values():
            host.close()

    @property
    def _turn_tokens(self) -> int:
        return self._settings.max_turn_tokens or self._max_response

    def _begin(self, spec: EpisodeSpec) -> _Playing:
        playing = self._start(spec)
        if len(playing.prompt) > self._max_prompt and not playing.start.ending:
            playing.episode.stop()
            what = f"the prompt of an episode has {len(playing.prompt)} tokens, and {self._max_prompt} are allowed"
            fix = f"set {len(playing.prompt)} or more as rollout.max_prompt_tokens (data.max_prompt_length in verl)"
            raise InputError(what, where=f"environment {spec.environment}", fix=fix)
        return playing

    def _start(self, spec: EpisodeSpec) -> _Playing:
        episode = Episode(self._host(spec), spec.row, self._limits, tags=self._tags)
        start = episode.start()
        # If the environment could not start, nothing is sampled, and the row needs some prompt.
        messages = list(start.messages) or [{"role": "user", "content": "-"}]
        with self._tokenizer_lock:
            text = render(self.tokenizer, messages, tools=start.template_tools, variables=self._variables)
            prompt = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return _Playing(episode, start, prompt, opens_thinking(text, self._tags))

    def _started_once(self, spec: EpisodeSpec) -> _Playing:
        playing = self._start(spec)
        playing.episode.stop()
        return playing

    def _take(self, playing: _Playing, turn: SampledTurn, room: int) -> None:
        """Hand a sampled turn to its episode, and append it with the tokens that follow it."""
        tokens = list(turn.tokens)[:room]
        playing.tokens += tokens
        playing.mask += [1] * len(tokens)
        playing.has_logps &= turn.logps is not None
        playing.logps += list(turn.logps or [0.0] * len(tokens))[: len(tokens)]
        # vLLM names the same reason for a stop token and for the limit of tokens.
        playing.finished = bool(tokens) and (len(tokens) < room or tokens[-1] in self._stop_ids) and not turn.aborted
        if not tokens or turn.aborted:
            playing.episode.stop()
            return
        with self._tokenizer_lock:
            text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        outcome = playing.episode.assistant(text, not playing.finished, opened=playing.opened)
        if not outcome.goes_on:
            return
        with self._tokenizer_lock:
            following = following_tokens(
                self.tokenizer,
                playing.start.messages,
                outcome.messages,
                tokens[-1],
                tools=playing.start.template_tools,
                variables=self._variables,
            )
        if len(playing.tokens) + len(following.tokens) >= self._max_response:
            playing.episode.stop("token_limit")
            return
        playing.tokens += following.tokens
        playing.mask += [0] * len(following.tokens)
        playing.logps += [0.0] * len(following.tokens)
        playing.opened = opens_thinking(following.text, self._tags)
        playing.num_replies += 1

    def _played(self, playing: _Playing) -> PlayedEpisode:
        record = playing.episode.record()
        if record.verdict.failed:
            what = f"an episode of `{record.environment}` failed and is not trained on: {record.fault:.300}"
            warn_once(f"failed {record.environment}", what)
        if not playing.tokens:  # the environment could not start: verl needs a token, which is not trained on
            end = next(iter(sorted(self._stop_ids)), 0)
            return PlayedEpisode(playing.prompt, [end], [0], [0.0], record, False, 0)
        logps = playing.logps if playing.has_logps else None
        return PlayedEpisode(
            playing.prompt, playing.tokens, playing.mask, logps, record, playing.finished, playing.num_replies
        )

    def _host(self, spec: EpisodeSpec) -> EnvironmentHost:
        key = json.dumps([spec.environment, spec.settings, spec.reward], sort_keys=True)
        with self._hosts_lock:
            if key not in self._hosts:
                self._hosts[key] = EnvironmentHost(
                    spec.environment, spec.settings, reward=spec.reward, num_workers=self._num_workers
                )
            return self._hosts[key]


def require_kept_history(tokenizer: Any, settings: EpisodeSettings, variables: Mapping[str, Any] | None) -> None:
    """Raise InputError unless an episode is one sequence of tokens: the only form in which verl gets one from us."""
    if settings.history == "auto" and rewrites_history(tokenizer, variables=variables):
        what = "the chat template rewrites earlier turns, and under verl an episode is one sequence of tokens"
        fix = f"set {KEEP}: earlier turns then stay as they were sampled"
        raise InputError(what, where="rollout.episodes.history", fix=fix)
    if settings.history == "per_turn":
        what = "under verl an episode is one sequence of tokens, not one sample per turn"
        raise InputError(what, where="rollout.episodes.history", fix=f"set {KEEP}, or train with engine=local")
