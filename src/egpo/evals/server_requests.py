"""Sends one question to an OpenAI-compatible server, with retries, and caches the answers on disk.

`ask` sends a question and retries with back-off and jitter; `read_reply` parses the reply; `AnswerCache` keeps answers
in append-only JSON lines by a digest of the question, so that no question is sent twice.
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
from egpo.files import lock_file
from egpo.runs.json_lines import Line, LineStream, read_lines
from egpo.tags import THINK_TAGS


@dataclass(frozen=True)
class Answer:
    """A server's answer. `finished` is False if it was truncated. None: the server does not report it."""

    text: str
    num_tokens: int | None = None
    finished: bool | None = None


def question_key(url: str, body: Mapping[str, Any], sample: int) -> str:
    """Return a digest of the server, all that is sent to it (model, prompt, settings), and the sample's number."""
    text = json.dumps([url, body, sample], sort_keys=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class AnswerCache:
    """Answers by key, in memory and on disk. Failures are not stored: such a question is sent again next time."""

    def __init__(self, path: Path, answers: dict[str, Answer]) -> None:
        self.path, self._answers, self._stream = path, answers, LineStream(path)

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator["AnswerCache"]:
        """Open and lock the file. An incomplete last line, left by a killed process, is removed."""
        with _opened(path) as file:
            _lock(file.fileno(), path)
            lines = list(read_lines(path))
            LineStream(path).cut(lines[-1].end if lines else 0)
            yield cls(path, dict(_known(line, path) for line in lines))

    def find(self, key: str) -> Answer | None:
        return self._answers.get(key)

    def keep(self, key: str, answer: Answer) -> None:
        self._stream.append({"key": key, **asdict(answer)})
        self._answers[key] = answer


def _opened(path: Path) -> BinaryIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")
    except OSError as error:
        fix = "fix the permissions, or choose another --out"
        raise InputError(f"cannot be written ({error.strerror or error})", where=str(path), fix=fix) from error


def _known(line: Line, path: Path) -> tuple[str, Answer]:
    value = dict(line.value)
    try:
        return value.pop("key"), Answer(**value)
    except (KeyError, TypeError) as error:
        where = f"{path}, line {line.number}"
        raise InputError(f"not a stored answer ({error!r})", where=where, fix="remove the line") from error


def _lock(handle: int, path: Path) -> None:
    try:
        lock_file(handle)
    except BlockingIOError as error:
        fix = "wait for it or end it, or choose another --out"
        raise InputError("another process is writing its answers there", where=str(path), fix=fix) from error
    except OSError as error:
        warn_once("answers lock", f"{path}: it cannot be locked ({error.strerror}); do not start a second process here")


class InvalidReplyError(Exception):
    """The server's reply is not a chat completion."""


def read_reply(body: bytes) -> Answer:
    """Return the first choice of a chat completion.

    If the server moved the thinking out of the text (`reasoning_content`, `reasoning`), it is put back between its
    tags, so that the judge reads what the model wrote.
    """
    reply = _mapping(_parsed(body))
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices:
        raise InvalidReplyError("no `choices`")
    choice = _mapping(choices[0])
    return Answer(
        text=_text(_mapping(choice.get("message"))),
        num_tokens=_count(reply.get("usage")),
        finished=choice["finish_reason"] != "length" if isinstance(choice.get("finish_reason"), str) else None,
    )


def read_model_names(body: bytes) -> list[str]:
    """Return the names in a reply of `/v1/models`."""
    models = _mapping(_parsed(body)).get("data")
    if not isinstance(models, list):
        raise InvalidReplyError("no `data`")
    names = [model.get("id") for model in models if isinstance(model, dict)]
    return [name for name in names if isinstance(name, str)]


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidReplyError(f"not JSON: {body[:60]!r}") from error


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidReplyError(f"{value!r:.60} in place of an object")
    return value


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    thinking = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thinking, str):
        # A response that was truncated while thinking has no content, and its thinking tag stays open.
        closed = f"{THINK_TAGS[1]}\n\n{content}" if isinstance(content, str) and content else ""
        return f"{THINK_TAGS[0]}\n{thinking}{closed}"
    if not isinstance(content, str):
        raise InvalidReplyError("no text in the message")
    return content


def _count(usage: Any) -> int | None:
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return tokens if type(tokens) is int and tokens >= 0 else None


FAILURES = {
    "server_error": "the server answered 429 or 5xx every time",
    "server_timeout": "the server did not answer in time",
    "server_refused": "the server refused the request (4xx)",
    "server_garbage": "the server's answer was not a chat completion",
    "server_broke_off": "the server closed the connection",
    "server_gone": "no connection to the server",
}
"""Reasons why a question has no answer. None of them says anything about the model."""

_JSON = {"Content-Type": "application/json"}
_LARGEST_REPLY = 16 * 2**20
_MOST_TIMEOUTS = 2  # each has cost the whole of `timeout_s` already


@dataclass(frozen=True)
class RetryPolicy:
    """How often a question is sent: at most `attempts` times, each with `timeout_s` seconds to answer.

    The wait before a retry starts at `first_wait_s` and doubles, up to `longest_wait_s`. A question that timed out is
    retried only once.
    """

    attempts: int = 6
    timeout_s: float = 300.0
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0

    def wait_s(self, attempt: int, asked_for_s: float = 0.0) -> float:
        """Return the seconds to wait after an attempt (from 0). Jitter spreads the retries of many questions."""
        backed_off = min(self.longest_wait_s, self.first_wait_s * 2.0**attempt)
        return max(backed_off * random.uniform(0.5, 1.0), min(asked_for_s, self.longest_wait_s))


class UnansweredError(Exception):
    """No answer after all attempts. `reason` is a key of FAILURES."""

    def __init__(self, reason: str, detail: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{FAILURES[reason]}: {detail}")
        self.reason, self.retry_after_s = reason, retry_after_s


async def ask(client: httpx.AsyncClient, body: Mapping[str, Any], retries: RetryPolicy) -> Answer:
    """Return the answer. UnansweredError after all attempts; InputError if every question would fail.

    The latter holds for a wrong key, or a model that is not served.
    """
    num_timeouts = 0
    for attempt in range(retries.attempts):
        try:
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
    raise AssertionError("an attempt returns or raises")


async def _ask_once(client: httpx.AsyncClient, body: Mapping[str, Any]) -> Answer:
    content = json.dumps(body).encode("ascii")  # httpx would encode as UTF-8, which cannot hold lone surrogates
    try:
        async with client.stream("POST", "chat/completions", content=content, headers=_JSON) as reply:
            received = await _content(reply)
    except httpx.TimeoutException as error:
        raise TimeoutError from error
    except httpx.ConnectError as error:
        raise UnansweredError("server_gone", str(error) or type(error).__name__) from error
    except httpx.TransportError as error:
        raise UnansweredError("server_broke_off", str(error) or type(error).__name__) from error
    except httpx.HTTPError as error:  # a body that is not what its headers say
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
            raise UnansweredError("server_garbage", f"more than {_LARGEST_REPLY:,} bytes")
    return bytes(content)


def _refusal(reply: httpx.Response, content: bytes) -> Exception:
    said = f"{reply.status_code} {content[:200].decode('utf-8', 'backslashreplace')!r}"
    if reply.status_code in (401, 403, 404):
        fix = "check --url and the model's name; a key is read from the variable that --api-key-env names"
        return InputError(f"the server answered {said}", where=str(reply.url), fix=fix)
    if reply.status_code in (408, 429) or reply.status_code >= 500:
        return UnansweredError("server_error", said, _retry_after_s(reply))
    return UnansweredError("server_refused", said)


def _retry_after_s(reply: httpx.Response) -> float:
    text = reply.headers.get("retry-after", "")
    return float(text) if text.isdecimal() and len(text) < 9 else 0.0
