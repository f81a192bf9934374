"""What a server sent, read as an answer, or refused as garbage."""

import json
from collections.abc import Mapping
from typing import Any

from egpo.evals.cache import Answer
from egpo.tags import THINK_TAGS


class GarbageError(Exception):
    """The server answered, and not with a chat completion."""


def read_reply(body: bytes) -> Answer:
    """The first choice of a chat completion. Where the server took the thinking out of the text (`reasoning_content`,
    `reasoning`), it is put back between its tags: the judge reads what the model wrote."""
    reply = _mapping(_parsed(body))
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices:
        raise GarbageError("no `choices`")
    choice = _mapping(choices[0])
    return Answer(
        text=_text(_mapping(choice.get("message"))),
        num_tokens=_count(reply.get("usage")),
        finished=choice["finish_reason"] != "length" if isinstance(choice.get("finish_reason"), str) else None,
    )


def read_model_names(body: bytes) -> list[str]:
    """Of `/v1/models`."""
    models = _mapping(_parsed(body)).get("data")
    if not isinstance(models, list):
        raise GarbageError("no `data`")
    names = [model.get("id") for model in models if isinstance(model, dict)]
    return [name for name in names if isinstance(name, str)]


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise GarbageError(f"no JSON: {body[:60]!r}") from error


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise GarbageError(f"{value!r:.60} where an object should be")
    return value


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    thinking = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thinking, str):
        # Cut off while it was thinking, it has no content, and the thought stays open.
        closed = f"{THINK_TAGS[1]}\n\n{content}" if isinstance(content, str) and content else ""
        return f"{THINK_TAGS[0]}\n{thinking}{closed}"
    if not isinstance(content, str):
        raise GarbageError("no text in the message")
    return content


def _count(usage: Any) -> int | None:
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return tokens if type(tokens) is int and tokens >= 0 else None
