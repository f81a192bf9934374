"""Episodes of a served model, over OpenAI's protocol for tools: the server answers, the environment runs here.

The tools are sent with the question, and each answer goes back to the server as it came, followed by one `tool` message
per call. A server that does not parse calls answers with text: it is read as everywhere else. So the figures are those
of the same environments, limits and verdicts as for a model in this process.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from egpo.config.sections.training import EpisodeSettings
from egpo.environments import Episode, EpisodeLimits, EpisodeRecord, EpisodeThreads
from egpo.environments.episodes import TurnOutcome
from egpo.evals.responses import Response, Sampling
from egpo.evals.server_requests import (
    Answer,
    AnswerCache,
    RetryPolicy,
    UnansweredError,
    ask,
    question_key,
    sent_settings,
)
from egpo.rewards.trl import completion_text
from egpo.tags import THINK_TAGS
from egpo.tasks import Problem, Task
from egpo.tasks.episodes import environment_row, host_of

Message = dict[str, Any]


@dataclass(frozen=True)
class EpisodeQuestion:
    """One episode to play: sample number `sample` of problem number `problem`. `key` identifies it among the others."""

    problem: int
    sample: int
    key: str


@dataclass
class _Talk:
    """The conversation of one episode as the server is told it, and the tokens that it has sampled.

    `loose` are the indices of tool messages that answer text, and no call that the server has parsed.
    """

    messages: list[Message]
    tools: list[Any]
    loose: list[int] = field(default_factory=list)
    num_tokens: int | None = 0
    finished: bool | None = None


class ServedEpisodes:
    """The episodes of one evaluation. Answers are cached, so that a repeated evaluation asks only for missing ones."""

    def __init__(
        self,
        place: tuple[str, str],
        cache: AnswerCache,
        retries: RetryPolicy,
        task: Task,
        problems: Sequence[Problem],
        sampling: Sampling,
        settings: EpisodeSettings,
    ) -> None:
        (self._url, self._model), self._cache, self._retries = place, cache, retries
        self._task, self._problems, self._sampling = task, problems, sampling
        chosen = sampling.limited_episodes(settings)
        self._limits, self._turn_tokens = EpisodeLimits.of(chosen), chosen.max_turn_tokens
        self._threads = EpisodeThreads()
        self._is_strict = False
        self.responses: dict[str, Response] = {}

    def __enter__(self) -> "ServedEpisodes":
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.close()

    def questions(self) -> Iterator[EpisodeQuestion]:
        for place in range(len(self._problems)):
            for sample in range(self._sampling.n):
                yield EpisodeQuestion(place, sample, f"{place} {sample}")

    async def play(self, client: httpx.AsyncClient, question: EpisodeQuestion) -> None:
        """Play an episode to its end, and keep it as a response. UnansweredError if the server gives no answer."""
        problem = self._problems[question.problem]
        episode = Episode(host_of(self._task, problem), environment_row(problem), self._limits)
        try:
            start = await asyncio.wrap_future(self._threads.start(episode))
            talk = _Talk([dict(one) for one in start.messages], start.template_tools or [])
            while not episode.ending:
                try:
                    answer = await self._answer(client, talk, question, len(episode.turns))
                except UnansweredError as error:
                    if not episode.turns or not _is_too_long(error):
                        raise
                    episode.stop("token_limit")
                    break
                await self._take(episode, talk, answer)
        finally:
            episode.close()
        self.responses[question.key] = self._response(question, episode.record(), talk, start.messages)

    async def _answer(self, client: httpx.AsyncClient, talk: _Talk, question: EpisodeQuestion, turn: int) -> Answer:
        body, was_strict = self._body(talk, question, turn), self._is_strict
        key = question_key(self._url, body, question.sample)
        if (found := self._cache.find(key)) is not None:
            return found
        try:
            answer = await ask(client, body, self._retries)
        except UnansweredError as error:
            if error.reason != "server_refused" or was_strict or not talk.loose:
                raise
            # OpenAI's own servers refuse a tool message that answers no parsed call. They get the user's words.
            self._is_strict = True
            return await self._answer(client, talk, question, turn)
        self._cache.keep(key, answer)
        return answer

    def _body(self, talk: _Talk, question: EpisodeQuestion, turn: int) -> dict[str, Any]:
        problem, sampling = self._problems[question.problem], self._sampling
        sent = sent_settings(sampling, f"{problem.key}\n{turn}" if turn else problem.key, question.sample)
        left = None if sampling.max_tokens is None else sampling.max_tokens - (talk.num_tokens or 0)
        limits = [limit for limit in (left, self._turn_tokens) if limit is not None]
        messages = [
            {"role": "user", "content": message["content"]} if self._is_strict and place in talk.loose else message
            for place, message in enumerate(talk.messages)
        ]
        tools = {"tools": talk.tools} if talk.tools else {}
        return {"model": self._model, "messages": messages, **tools, **sent} | (
            {"max_tokens": max(1, min(limits))} if limits else {}
        )

    async def _take(self, episode: Episode, talk: _Talk, answer: Answer) -> None:
        """Hand an answer to the episode, and add it to the conversation with what follows it."""
        text, cut_off = turn_text(answer), answer.finished is False
        opened = THINK_TAGS[1] in text and THINK_TAGS[0] not in text
        outcome = await asyncio.wrap_future(self._threads.assistant(episode, text, cut_off, opened=opened))
        known = talk.num_tokens is not None and answer.num_tokens is not None
        talk.num_tokens = (talk.num_tokens or 0) + (answer.num_tokens or 0) if known else None
        talk.finished = answer.finished
        _continue(talk, answer, outcome)
        talk.tools = talk.tools and list(episode.tools)
        limit = self._sampling.max_tokens
        if not episode.ending and limit is not None and talk.num_tokens is not None and talk.num_tokens >= limit:
            episode.stop("token_limit")

    def _response(
        self, question: EpisodeQuestion, record: EpisodeRecord, talk: _Talk, prompt: Sequence[Mapping[str, Any]]
    ) -> Response:
        return Response(
            problem=question.problem,
            sample=question.sample,
            prompt=prompt_of(prompt),
            text="\n\n".join(turn.text for turn in record.turns),
            num_tokens=talk.num_tokens,
            finished=talk.finished,
            episode=record,
        )


def _is_too_long(error: UnansweredError) -> bool:
    """Return whether the server refused the conversation because it does not fit the model's context.

    There is no code for it that all servers use, so their words are read.
    """
    return error.reason == "server_refused" and bool(re.search(r"context|too long|too large|length", str(error), re.I))


def prompt_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the prompt of a served model as text: how its template renders it is not known."""
    return "\n\n".join(f"[{message.get('role')}]\n{message.get('content')}" for message in messages)


def turn_text(answer: Answer) -> str:
    """Return what the model wrote: calls and thinking that the server has taken out of the text are put back."""
    if answer.message is None:
        return answer.text
    message = {**answer.message, "role": "assistant"}
    message["reasoning_content"] = message.get("reasoning_content") or message.get("reasoning")
    calls = [call.get("function", {}) for call in message.get("tool_calls") or []]
    # A call without arguments has an empty text there.
    message["tool_calls"] = [{**call, "arguments": call.get("arguments") or {}} for call in calls]
    return completion_text(message)


def _continue(talk: _Talk, answer: Answer, outcome: TurnOutcome) -> None:
    """Add the answer as the server gave it, and what follows: each parsed call gets one tool message, by its id."""
    said = answer.message or {"content": answer.text}
    talk.messages.append({**said, "role": "assistant"})
    ids = [str(call.get("id") or f"call_{place}") for place, call in enumerate(said.get("tool_calls") or [])]
    results = [dict(message) for message in outcome.messages if message["role"] == "tool"]
    if ids and results and len(results) != len(ids):  # nothing was run, for one reason
        results = [dict(results[0]) for _ in ids]
    for place, message in enumerate(results):
        if not ids:
            talk.loose.append(len(talk.messages))
        talk.messages.append({**message, "tool_call_id": ids[place] if ids else f"call_{place}"})
    talk.messages += [dict(message) for message in outcome.messages if message["role"] != "tool"]
