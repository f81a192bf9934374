"""Sends one question to an OpenAI-compatible server, with retries, and caches the answers on disk.

`ask` sends a question, and retries after a growing random delay; `read_reply` parses the reply; `AnswerCache` appends
each answer to a file of JSON lines, with a digest of its question as the key, so that no question is answered twice.
"""

import asyncio
import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import httpx

from egpo.errors import InputError, warn_once
from egpo.evals.responses import Sampling
from egpo.files import lock_file
from egpo.rewards.trl import completion_text
from egpo.runs.json_lines import Line, LineStream, read_lines
from egpo.tags import THINK_TAGS
from egpo.waits import waiting


@dataclass(frozen=True)
class Answer:
    """A server's answer to a question. `finished` is False if the answer was truncated at the length limit.

    `num_tokens` and `finished` are None if the server does not report them. `message`: the message as the server gave
    it, if the server has parsed calls of tools or thinking; None if it is only text.
    """

    text: str
    num_tokens: int | None = None
    finished: bool | None = None
    message: Mapping[str, Any] | None = None


def question_key(url: str, body: Mapping[str, Any], sample: int) -> str:
    """Return the cache key of a question: a digest of the server's URL, the request's body, and the sample's number."""
    text = json.dumps([url, body, sample], sort_keys=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def sent_settings(sampling: Sampling, key: str, sample: int) -> dict[str, Any]:
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


class AnswerCache:
    """A cache of answers by key, in memory and on disk.

    Failures are not stored: a question that failed is sent again in the next evaluation.
    """

    def __init__(self, path: Path, answers: dict[str, Answer]) -> None:
        self.path, self._answers, self._stream = path, answers, LineStream(path)

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator["AnswerCache"]:
        """Open and lock the file of the cache. An incomplete last line, left by a killed process, is removed."""
        with _opened(path) as file:
            _lock(file.fileno(), path)
            lines = list(read_lines(path))
            LineStream(path).cut(lines[-1].end if lines else 0)
            yield cls(path, dict(_known(line, path) for line in lines))

    def find(self, key: str) -> Answer | None:
        return self._answers.get(key)

    def keep(self, key: str, answer: Answer) -> None:
        line = {"key": key, **asdict(answer)}
        if answer.message is None:
            del line["message"]
        self._stream.append(line)
        self._answers[key] = answer


def _opened(path: Path) -> BinaryIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")
    except OSError as error:
        fix = "fix the permissions, or choose another --out"
        raise InputError(
            f"the cache of answers cannot be written ({error.strerror or error})", where=str(path), fix=fix
        ) from error


def _known(line: Line, path: Path) -> tuple[str, Answer]:
    value = dict(line.value)
    try:
        return value.pop("key"), Answer(**value)
    except (KeyError, TypeError) as error:
        where = f"{path}, line {line.number}"
        raise InputError(f"this line is not a stored answer ({error!r})", where=where, fix="remove the line") from error


def _lock(handle: int, path: Path) -> None:
    try:
        lock_file(handle)
    except BlockingIOError as error:
        fix = "wait for that process or end it, or choose another folder with --out"
        raise InputError("another process is writing its answers to this file", where=str(path), fix=fix) from error
    except OSError as error:
        warn_once("answers lock", f"{path}: it cannot be locked ({error.strerror}); do not start a second process here")


class InvalidReplyError(Exception):
    """The server's reply is not a chat completion or a list of models."""


def read_reply(body: bytes) -> Answer:
    """Return the first choice of a chat completion as an answer.

    If the server returns the thinking in a separate field (`reasoning_content`, `reasoning`), it is put back in front
    of the text between thinking tags, so that the reward reads what the model wrote.
    """
    reply = _mapping(_parsed(body))
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices:
        raise InvalidReplyError("it has no `choices`")
    choice = _mapping(choices[0])
    message = _mapping(choice.get("message"))
    calls = _calls(message)
    parts = ("reasoning_content", "reasoning", "tool_calls")
    parsed = {name: message[name] for name in parts if message.get(name)}
    return Answer(
        text=_text(message) if not calls else completion_text({**message, "role": "assistant"}),
        num_tokens=_count(reply.get("usage")),
        finished=choice["finish_reason"] != "length" if isinstance(choice.get("finish_reason"), str) else None,
        message={"content": message.get("content"), **parsed} if parsed else None,
    )


def read_model_names(body: bytes) -> list[str]:
    """Return the names of the models in the server's reply to a request for `/v1/models`."""
    models = _mapping(_parsed(body)).get("data")
    if not isinstance(models, list):
        raise InvalidReplyError("the reply has no list `data`")
    names = [model.get("id") for model in models if isinstance(model, dict)]
    return [name for name in names if isinstance(name, str)]


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidReplyError(f"it is not JSON: {body[:60]!r}") from error


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidReplyError(f"it has {value!r:.60} where a JSON object is expected")
    return value


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the calls that the server has parsed. Raise InvalidReplyError if they are not calls."""
    calls = message.get("tool_calls") or []
    named = isinstance(calls, list) and all(
        isinstance(call, dict) and isinstance((call.get("function") or {}).get("name"), str) for call in calls
    )
    if not named:
        raise InvalidReplyError(f"its `tool_calls` are not calls: {calls!r:.60}")
    return list(calls)


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    thinking = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thinking, str):
        # A response that was truncated while thinking has no content, and its thinking tag stays open.
        closed = f"{THINK_TAGS[1]}\n\n{content}" if isinstance(content, str) and content else ""
        return f"{THINK_TAGS[0]}\n{thinking}{closed}"
    if not isinstance(content, str):
        raise InvalidReplyError("its message has no text")
    return content


def _count(usage: Any) -> int | None:
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return tokens if type(tokens) is int and tokens >= 0 else None


FAILURES = {
    "server_error": "the server answered every attempt with an error (status 408, 429 or 5xx)",
    "server_timeout": "the server did not answer in time",
    "server_refused": "the server refused the request (status 4xx)",
    "server_garbage": "the server's answer was not a chat completion",
    "server_broke_off": "the server closed the connection",
    "server_gone": "no connection to the server",
}
"""Reasons why a question has no answer, with their meaning. They are failures of the server, not of the model."""

_JSON = {"Content-Type": "application/json"}
_LARGEST_REPLY = 16 * 2**20
_MOST_TIMEOUTS = 2  # fewer than other failures: each timeout has already taken `timeout_s` seconds


@dataclass(frozen=True)
class RetryPolicy:
    """How often a question is sent to the server: at most `attempts` times, each with `timeout_s` seconds to answer.

    The wait before the first retry is at most `first_wait_s` seconds, and doubles with each retry, up to
    `longest_wait_s`. A question is not sent again after its second timeout.
    """

    attempts: int = 6
    timeout_s: float = 300.0
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0

    def wait_s(self, attempt: int, asked_for_s: float = 0.0) -> float:
        """Return how many seconds to wait after a failed attempt. `attempt` counts from 0.

        The wait is random, so that many questions are not sent again at the same time, but at least `asked_for_s`, the
        time that the server asked for, if this is not more than `longest_wait_s`.
        """
        backed_off = min(self.longest_wait_s, self.first_wait_s * 2.0**attempt)
        return max(backed_off * random.uniform(0.5, 1.0), min(asked_for_s, self.longest_wait_s))


class UnansweredError(Exception):
    """A question got no answer. `reason` is a key of FAILURES; `retry_after_s`: the wait that the server asked for."""

    def __init__(self, reason: str, detail: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{FAILURES[reason]}: {detail}")
        self.reason, self.retry_after_s = reason, retry_after_s


async def ask(client: httpx.AsyncClient, body: Mapping[str, Any], retries: RetryPolicy) -> Answer:
    """Send a question, with retries, and return the answer.

    Raise UnansweredError if no attempt succeeds, and InputError if every other question would fail, too: for a wrong
    address or API key, or a model that is not served.
    """
    num_timeouts = 0
    for attempt in range(retries.attempts):
        try:
            what = f"an answer of the server at {client.base_url}"
            with waiting("server", what, limit_s=retries.timeout_s):
                async with asyncio.timeout(retries.timeout_s):
                    return await _ask_once(client, body)
        except TimeoutError:
            num_timeouts += 1
            failure = UnansweredError("server_timeout", f"{retries.timeout_s:g} s")
        except UnansweredError as error:
            failure = error
        if failure.reason == "server_refused" or num_timeouts == _MOST_TIMEOUTS or attempt + 1 == retries.attempts:
            raise failure
        await asyncio.sleep(retries.wait_s(attempt, failure.retry_after_s))
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _ask_once(client: httpx.AsyncClient, body: Mapping[str, Any]) -> Answer:
    content = json.dumps(body).encode("ascii")  # httpx would encode as UTF-8, which fails on lone surrogates
    try:
        async with client.stream("POST", "chat/completions", content=content, headers=_JSON) as reply:
            received = await _content(reply)
    except httpx.TimeoutException as error:
        raise TimeoutError from error
    except httpx.ConnectError as error:
        raise UnansweredError("server_gone", str(error) or type(error).__name__) from error
    except httpx.TransportError as error:
        raise UnansweredError("server_broke_off", str(error) or type(error).__name__) from error
    except httpx.HTTPError as error:  # such as a body that cannot be decoded as its headers say
        raise UnansweredError("server_garbage", str(error)) from error
    if reply.status_code != httpx.codes.OK:
        raise _refusal(reply, received)
    try:
        return read_reply(received)
    except InvalidReplyError as error:
        raise UnansweredError("server_garbage", str(error)) from error


async def _content(reply: httpx.Response) -> bytes:
    content = bytearray()
    async for part in reply.aiter_bytes():
        content += part
        if len(content) > _LARGEST_REPLY:
            raise UnansweredError("server_garbage", f"it is longer than {_LARGEST_REPLY:,} bytes")
    return bytes(content)


def _refusal(reply: httpx.Response, content: bytes) -> Exception:
    said = f"{reply.status_code} {content[:200].decode('utf-8', 'backslashreplace')!r}"
    if reply.status_code in (401, 403, 404):
        fix = "check --url, the model's name, and the API key in the environment variable given with --api-key-env"
        return InputError(f"the server refused the request: {said}", where=str(reply.url), fix=fix)
    if reply.status_code in (408, 429) or reply.status_code >= 500:
        return UnansweredError("server_error", said, _retry_after_s(reply))
    return UnansweredError("server_refused", said)


def _retry_after_s(reply: httpx.Response) -> float:
    text = reply.headers.get("retry-after", "")
    return float(text) if text.isdecimal() and len(text) < 9 else 0.0
