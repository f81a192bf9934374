"""Conversations out of a file, in the form that chat templates read."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpo.data import Dropped, Record, read_records
from egpo.data.calls import CallsError, parse_openai
from egpo.data.conversations import UnfitError, content_text
from egpo.data.inverse import stored_answer
from egpo.data.messages import require_messages
from egpo.data.rows import parse_row
from egpo.data.tool_prompt import Tool, parse_tools

Turn = dict[str, Any]
"""One message: `role`, `content`, and what else its template may read (`tool_calls`, `reasoning_content`, ...)."""


@dataclass(frozen=True)
class Conversation:
    """Up to its last assistant turn: what follows that one teaches nothing."""

    messages: tuple[Turn, ...]
    tools: tuple[Tool, ...]
    where: str

    @property
    def answers(self) -> list[int]:
        """Which of the messages the assistant says, in answer to something: a first word to nobody is read only."""
        return [i for i, message in enumerate(self.messages) if i and message["role"] == "assistant"]


def read_conversations(path: Path) -> Iterator[Conversation | Dropped]:
    """Every record of a JSON, JSON lines or parquet file, or why it teaches nothing.

    A record holds `messages` (and `tools`), or is a row of `egpo prepare`, whose answer then is the last turn.
    """
    return (_conversation(record) for record in read_records(path))


def _conversation(record: Record) -> Conversation | Dropped:
    if "messages" not in record.value and "reward_model" in record.value:
        return _prepared(record)
    messages = require_messages(record, _FORMS)
    if not any(message.get("role") == "assistant" for message in messages[1:]):
        return Dropped("no_assistant_turn")
    try:
        tools = parse_tools(record.value.get("tools"))
    except (ValueError, TypeError, RecursionError):
        return Dropped("bad_tools")
    try:
        return _up_to_last_answer([_turn(message) for message in messages], tools, record.where)
    except CallsError:
        return Dropped("bad_calls")
    except UnfitError as unfit:
        return Dropped(unfit.reason)


def _prepared(record: Record) -> Conversation | Dropped:
    row = parse_row(record.value, record.where)
    answer = stored_answer(row)
    if isinstance(answer, Dropped):  # a row to be judged, without an answer to learn
        return Dropped("no_assistant_turn")
    return Conversation((*row.prompt, {"role": "assistant", "content": answer}), (), record.where)


_FORMS = "give conversations in OpenAI's form, or parquet of `egpo prepare`"


def _up_to_last_answer(messages: list[Turn], tools: list[Tool], where: str) -> Conversation:
    whole = Conversation(tuple(messages), tuple(tools), where)
    return Conversation(whole.messages[: whole.answers[-1] + 1], whole.tools, where)


def _turn(message: Mapping[str, Any]) -> Turn:
    # Parquet fills every key of every message: a template that asks `is defined` must not see the empty ones.
    turn = {key: value for key, value in message.items() if value is not None}
    if not isinstance(turn.get("role"), str):
        raise UnfitError("unknown_role")
    turn["content"] = _content(turn)
    if turn.pop("tool_calls", None):
        turn["tool_calls"] = _calls(message["tool_calls"])
    return turn


def _content(turn: Turn) -> str:
    try:
        return content_text(turn.get("content"))
    except UnfitError:
        if turn["role"] == "tool":  # what a function gave back may be any value
            return json.dumps(turn["content"], ensure_ascii=False)
        raise


def _calls(calls: Any) -> list[dict[str, Any]]:
    """Arguments as an object: a template that writes JSON would write their text in quotes."""
    if not isinstance(calls, list):
        raise CallsError("`tool_calls` is not a list")
    return [
        {key: value for key, value in call.items() if key in ("id", "type") and value is not None}
        | {"type": "function", "function": {"name": read.name, "arguments": dict(read.arguments)}}
        for call, read in zip(calls, parse_openai(calls), strict=True)
    ]
