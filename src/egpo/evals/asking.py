"""One question to an OpenAI-compatible server, asked again with back-off and jitter while that may help."""

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from egpo.errors import InputError
from egpo.evals.cache import Answer
from egpo.evals.replies import GarbageError, read_reply

FAILURES = {
    "server_error": "the server answered 429 or 5xx every time",
    "server_timeout": "the server did not answer in time",
    "server_refused": "the server refused the request (4xx)",
    "server_garbage": "the server's answer was no chat completion",
    "server_broke_off": "the server broke the connection off",
    "server_gone": "no connection to the server",
}
"""Why a question has no answer. None of them tells anything of the model."""

_JSON = {"Content-Type": "application/json"}
_LARGEST_REPLY = 16 * 2**20
_MOST_TIMEOUTS = 2  # each has cost the whole of `timeout_s` already


@dataclass(frozen=True)
class Patience:
    """Up to `attempts` at a question, each of `timeout_s` at most; waits of `first_wait_s` that double, up to
    `longest_wait_s`. A question that timed out is asked once more only."""

    attempts: int = 6
    timeout_s: float = 300.0
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0

    def wait_s(self, attempt: int, asked_for_s: float = 0.0) -> float:
        """After the `attempt`-th, counted from 0. Jitter keeps many questions from coming back at once."""
        backed_off = min(self.longest_wait_s, self.first_wait_s * 2.0**attempt)
        return max(backed_off * random.uniform(0.5, 1.0), min(asked_for_s, self.longest_wait_s))


class UnansweredError(Exception):
    """No answer, however often asked. `reason` is one of FAILURES."""

    def __init__(self, reason: str, detail: str, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{FAILURES[reason]}: {detail}")
        self.reason, self.retry_after_s = reason, retry_after_s


async def ask(client: httpx.AsyncClient, body: Mapping[str, Any], patience: Patience) -> Answer:
    """The answer, or UnansweredError. An InputError where asking again, or asking anything, is pointless: a wrong key,
    a model that is not served."""
    num_timeouts = 0
    for attempt in range(patience.attempts):
        try:
            async with asyncio.timeout(patience.timeout_s):
                return await _ask_once(client, body)
        except TimeoutError:
            num_timeouts += 1
            failure = UnansweredError("server_timeout", f"{patience.timeout_s:g} s")
        except UnansweredError as error:
            failure = error
        if failure.reason == "server_refused" or num_timeouts == _MOST_TIMEOUTS or attempt + 1 == patience.attempts:
            raise failure
        await asyncio.sleep(patience.wait_s(attempt, failure.retry_after_s))
    raise AssertionError("an attempt returns or raises")


async def _ask_once(client: httpx.AsyncClient, body: Mapping[str, Any]) -> Answer:
    content = json.dumps(body).encode("ascii")  # httpx would write UTF-8, which has no place for lone surrogates
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
    except GarbageError as error:
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
        return InputError(f"the server says {said}", where=str(reply.url), fix=fix)
    if reply.status_code in (408, 429) or reply.status_code >= 500:
        return UnansweredError("server_error", said, _retry_after_s(reply))
    return UnansweredError("server_refused", said)


def _retry_after_s(reply: httpx.Response) -> float:
    text = reply.headers.get("retry-after", "")
    return float(text) if text.isdecimal() and len(text) < 9 else 0.0
