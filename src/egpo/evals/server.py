"""Samples responses from a model behind an OpenAI-compatible server. A server reports no entropy: it stays unknown."""

import asyncio
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from egpo.errors import EgpoError, InputError
from egpo.evals.responses import ProgressCallback, Response, Sampling
from egpo.evals.server_requests import (
    Answer,
    AnswerCache,
    InvalidReplyError,
    RetryPolicy,
    UnansweredError,
    ask,
    question_key,
    read_model_names,
)
from egpo.tasks import Problem, Task

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
    """

    server: Server
    model: str
    cache: AnswerCache

    @property
    def label(self) -> str:
        return self.model

    def respond(
        self, task: Task, problems: Sequence[Problem], sampling: Sampling, watch: ProgressCallback
    ) -> list[Response]:
        questions = list(self._questions(task, problems, sampling))
        failures = asyncio.run(_Session(self, questions, watch).run())
        return [self._response(question, failures.get(question.key)) for question in questions]

    def _questions(self, task: Task, problems: Sequence[Problem], sampling: Sampling) -> Iterator[_Question]:
        for index, problem in enumerate(problems):
            messages = [dict(message) for message in task.prompt(problem)]
            for sample in range(sampling.n):
                body = {"model": self.model, "messages": messages, **_sent(sampling, problem.key, sample)}
                yield _Question(index, sample, messages, body, question_key(self.server.url, body, sample))

    def _response(self, question: _Question, failure: str | None) -> Response:
        answer = self.cache.find(question.key) or Answer("")
        prompt = "\n\n".join(f"[{message.get('role')}]\n{message.get('content')}" for message in question.messages)
        return Response(
            problem=question.problem,
            sample=question.sample,
            prompt=prompt,
            text=answer.text,
            num_tokens=answer.num_tokens,
            finished=answer.finished,
            failure=failure,
        )


class _Session:
    """The requests of one evaluation: sends the questions that are not in the cache, several at a time."""

    def __init__(self, model: ServedModel, questions: list[_Question], watch: ProgressCallback) -> None:
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
                answer = await ask(client, question.body, self._model.server.retries)
            except UnansweredError as error:
                self._note(question, error)
            else:
                self._failed_in_a_row = 0
                self._model.cache.keep(question.key, answer)
                self._done += 1
            self._watch(self._done, self._total)

    def _note(self, question: _Question, error: UnansweredError) -> None:
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


def _is_address(url: str) -> bool:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return parsed.scheme in ("http", "https") and bool(parsed.host)


def _holds_more(url: str) -> bool:
    parsed = httpx.URL(url)
    return bool(parsed.userinfo or parsed.query or parsed.fragment)


def _sent(sampling: Sampling, key: str, sample: int) -> dict[str, Any]:
    """Return the sampling settings under the names of OpenAI's protocol. Settings without a value are left out.

    Each sample has its own seed: with the same seed, a server would return the same response n times.
    """
    name = f"{sampling.seed}\n{key}\n{sample}".encode("utf-8", "backslashreplace")
    settings: dict[str, Any] = {
        "temperature": sampling.temperature,
        "seed": int.from_bytes(hashlib.blake2b(name, digest_size=4).digest(), "big") >> 1,
    }
    if sampling.top_p < 1:
        settings["top_p"] = sampling.top_p
    # top_k and min_p are not in OpenAI's protocol, but vLLM, SGLang and llama.cpp accept them under these names.
    if sampling.top_k:
        settings["top_k"] = sampling.top_k
    if sampling.min_p:
        settings["min_p"] = sampling.min_p
    if sampling.max_tokens is not None:
        settings["max_tokens"] = sampling.max_tokens
    return settings
