"""Hermes and Qwen syntax: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, with any text around."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from egpo.rewards.tool_calls.calls import Call, call_from_json
from egpo.rewards.tool_calls.json_values import decode_at, may_be_deep
from egpo.rewards.tool_calls.reasons import UnreadableError

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_END = re.compile(r"\s*+</tool_call>")


@dataclass(frozen=True, slots=True)
class Tagged:
    """One tagged call and the stretch of text that it takes, tags included."""

    call: Call
    start: int
    end: int


def tagged_calls(text: str) -> Iterator[Tagged]:
    """Every tagged call, first to last; UnreadableError at the first one that is not whole.

    The JSON value is decoded where it stands and says itself where it ends, so a tag inside an argument is only text.
    """
    deep = may_be_deep(text)
    start = text.find(OPEN)
    while start >= 0:
        value, end = _decode_body(text, start, deep)
        closing = _END.match(text, end)
        if closing is None:
            raise _broken(text, end)
        yield Tagged(call_from_json(value), start, closing.end())
        start = text.find(OPEN, closing.end())


def _decode_body(text: str, start: int, deep: bool) -> tuple[object, int]:
    try:
        return decode_at(text, start + len(OPEN), deep=deep)
    except UnreadableError as error:
        raise _broken(text, start) if error.reason == "malformed_call" else error from None


def _broken(text: str, start: int) -> UnreadableError:
    return UnreadableError("malformed_call" if text.find(CLOSE, start) >= 0 else "unclosed_call")
