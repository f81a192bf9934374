"""Samples responses from a model behind an OpenAI-compatible server. A server reports no entropy: it stays unknown."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from egpo.config.sections.training import EpisodeSettings
from egpo.errors import EgpoError, InputError
from egpo.evals.responses import ProgressCallback, Response, Sampling
from egpo.evals.server_episodes import EpisodeQuestion, ServedEpisodes, prompt_of
from egpo.evals.server_requests import (
    Answer,
    AnswerCache,
    InvalidReplyError,
    RetryPolicy,
    UnansweredError,
    ask,
    question_key,
    read_model_names,
    sent_settings,
)
from egpo.tasks import Problem, Task
from egpo.tasks.episodes import environment_of
from egpo.waits import waiting

_MOST_FAILURES_IN_A_ROW = 8
"""Consecutive failures after which the evaluation stops: the server is down or broken."""


@dataclass(frozen=True)
class Server:
    """An OpenAI-compatible server, and how requests are sent to it.

    `url` ends with `/v1`. `api_key` is None if the server needs no key. `concurrency` requests are sent at a time.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    concurrency: int = 16
    retries: RetryPolicy = field(default_factory=RetryPolicy)

    @classmethod
    def at(cls, url: str, **settings: Any) -> "Server":
        """Return the server at an address such as `http://host:8000`, with or without `/v1`."""
        if not _is_address(url):
            fix = "give an address such as http://localhost:8000/v1"
            raise InputError(f"`{url}` is not an address of a server", where="--url", fix=fix)
        if _holds_more(url):
            fix = "remove it, since addresses are displayed and stored; name the variable of a key with --api-key-env"
            raise InputError("the address contains a user name, a password or a query", where="--url", fix=fix)
        plain = url.rstrip("/")
        return cls(plain if plain.endswith("/v1") else f"{plain}/v1", **settings)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def model_names(self) -> list[str]:
        """Return the names of the models that the server lists."""
        try:
            with waiting("server list", f"the list of models at {self.url}", limit_s=self.retries.timeout_s):
                reply = httpx.get(f"{self.url}/models", headers=self.headers, timeout=self.retries.timeout_s)
            reply.raise_for_status()
            return read_model_names(reply.content)
        except (httpx.HTTPError, httpx.InvalidURL, InvalidReplyError) as error:
            fix = "check that the server is running at this address, or name the model in the command"
            raise InputError(
                f"the server does not list its models ({error})", where=f"{self.url}/models", fix=fix
            ) from error

    def only_model(self) -> str:
        """Return the name of the only model that the server lists. Raise InputError if it lists none or several."""
        names = self.model_names()
        if len(names) != 1:
            fix = f"name one in the command: {', '.join(names)}" if names else "name the model in the command"
            raise InputError(f"the server lists {len(names)} models instead of one", where=self.url, fix=fix)
        return names[0]


@dataclass(frozen=True)
class _Question:
    problem: int
    sample: int
    messages: Sequence[Mapping[str, Any]]
    body: dict[str, Any]
    key: str


@dataclass(eq=False)
class ServedModel:
    """A model behind a server.

    Each answer is cached on disk when it arrives, so that a repeated evaluation requests only the missing ones.
    `episodes`: limits, for tasks with an environment.
    """

    server: Server
    model: str
    cache: AnswerCache
    episodes: EpisodeSettings = field(default_factory=EpisodeSettings)

    @property
    def label(self) -> str:
        return self.model

    def respond(
        self, task: Task, problems: Sequence[Problem], sampling: Sampling, watch: ProgressCallback
    ) -> list[Response]:
        if problems and environment_of(task, problems[0]) is not None:
            return self._play(task, problems, sampling, watch)
        questions = list(self._questions(task, problems, sampling))
        failures = asyncio.run(_Session(self, questions, watch).run())
        return [self._response(question, failures.get(question.key)) for question in questions]

    def _play(
        self, task: Task, problems: Sequence[Problem], sampling: Sampling, watch: ProgressCallback
    ) -> list[Response]:
        place, retries = (self.server.url, self.model), self.server.retries
        with ServedEpisodes(place, self.cache, retries, task, problems, sampling, self.episodes) as played:
            questions = list(played.questions())
            failures = asyncio.run(_EpisodeSession(self, questions, watch, played).run())
            unplayed = {
                one.key: Response(one.problem, one.sample, "", "", failure=failures[one.key])
                for one in questions
                if one.key in failures
            }
            return [(played.responses | unplayed)[one.key] for one in questions]

    def _questions(self, task: Task, problems: Sequence[Problem], sampling: Sampling) -> Iterator[_Question]:
        for index, problem in enumerate(problems):
            messages = [dict(message) for message in task.prompt(problem)]
            for sample in range(sampling.n):
                body = {"model": self.model, "messages": messages, **sent_settings(sampling, problem.key, sample)}
                yield _Question(index, sample, messages, body, question_key(self.server.url, body, sample))

    def _response(self, question: _Question, failure: str | None) -> Response:
        answer = self.cache.find(question.key) or Answer("")
        return Response(
            problem=question.problem,
            sample=question.sample,
            prompt=prompt_of(question.messages),
            text=answer.text,
            num_tokens=answer.num_tokens,
            finished=answer.finished,
            failure=failure,
        )


class _Session:
    """The requests of one evaluation: sends the questions that are not in the cache, several at a time."""

    def __init__(
        self, model: ServedModel, questions: Sequence[_Question | EpisodeQuestion], watch: ProgressCallback
    ) -> None:
        self._model, self._watch, self._total = model, watch, len(questions)
        self._open = iter([question for question in questions if model.cache.find(question.key) is None])
        self._done = sum(model.cache.find(question.key) is not None for question in questions)
        self._failures: dict[str, str] = {}
        self._failed_in_a_row = 0

    async def run(self) -> dict[str, str]:
        """Send all questions that are not cached. Return the reason of each failure, by the key of the question."""
        server = self._model.server
        limits = httpx.Limits(max_connections=server.concurrency)
        self._watch(self._done, self._total)
        async with httpx.AsyncClient(
            base_url=f"{server.url}/", headers=server.headers, limits=limits, timeout=None
        ) as client:
            try:
                async with asyncio.TaskGroup() as workers:
                    for _ in range(server.concurrency):
                        workers.create_task(self._work(client))
            except BaseExceptionGroup as group:
                raise group.exceptions[0] from group.exceptions[0].__cause__
        return self._failures

    async def _work(self, client: httpx.AsyncClient) -> None:
        for question in self._open:
            try:
                await self._ask(client, question)
            except UnansweredError as error:
                self._note(question, error)
            else:
                self._failed_in_a_row = 0
                self._done += 1
            self._watch(self._done, self._total)

    async def _ask(self, client: httpx.AsyncClient, question: Any) -> None:
        answer = await ask(client, question.body, self._model.server.retries)
        self._model.cache.keep(question.key, answer)

    def _note(self, question: _Question | EpisodeQuestion, error: UnansweredError) -> None:
        """Record a question that failed.

        Raise EgpoError if the server cannot be reached, if too many questions failed in a row, or if all failed.
        """
        self._failures[question.key] = error.reason
        self._failed_in_a_row += error.reason != "server_refused"
        none_yet = not self._done and len(self._failures) == self._total
        if error.reason == "server_gone" or self._failed_in_a_row >= _MOST_FAILURES_IN_A_ROW or none_yet:
            raise EgpoError(
                f"the evaluation stopped after {self._done:,} of {self._total:,} responses ({error})",
                where=self._model.server.url,
                fix="fix the server, then run the same command again; "
                f"it continues with the answers in {self._model.cache.path}",
            ) from error


class _EpisodeSession(_Session):
    """The episodes of one evaluation, several at a time. An episode fails if one of its turns gets no answer."""

    def __init__(
        self,
        model: ServedModel,
        questions: Sequence[EpisodeQuestion],
        watch: ProgressCallback,
        played: ServedEpisodes,
    ) -> None:
        super().__init__(model, questions, watch)
        self._played = played

    async def _ask(self, client: httpx.AsyncClient, question: EpisodeQuestion) -> None:
        await self._played.play(client, question)


def _is_address(url: str) -> bool:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return parsed.scheme in ("http", "https") and bool(parsed.host)


def _holds_more(url: str) -> bool:
    parsed = httpx.URL(url)
    return bool(parsed.userinfo or parsed.query or parsed.fragment)
