"""Hermes and Qwen syntax: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, with any text around.

Calls written in no syntax that is read: attempts, which are neither right answers nor refusals.

The calls of an answer, whichever syntax it uses.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from egpo.call_bounds import MAX_CALLS_CHARS
from egpo.rewards.tool_calls.calls import Call, UnreadableError, call_from_json, decode_at, may_be_deep
from egpo.rewards.tool_calls.python_list import is_bare_calls, listed_calls, starts_like_a_call, starts_like_calls

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


_FOREIGN_MARKS = (
    "[TOOL_CALLS]",
    "<function=",
    "<function_call>",
    "<tool_calls>",
    "<|tool_call|>",
    "<|tool_calls_section_begin|>",
    "<|python_tag|>",
    "<｜tool▁calls▁begin｜>",
)
"""With which other models' templates open their calls."""

_JSON_START = re.compile(r'(?:\[\s*+)?+\{\s*+"')
_JSON_NAME = re.compile(r'"name"\s*+:\s*+"')
_JSON_ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*+:')


def is_attempt(text: str) -> bool:
    """Whether an answer in which no call was found is one all the same: calls without their list, in backticks or
    not; the JSON of a call without its tags, whatever the order of its keys; or another model's syntax.

    Prose stays prose, also where it mentions `f(a=1)` or has parentheses.
    """
    if any(mark in text for mark in _FOREIGN_MARKS):
        return True
    if _JSON_START.match(text):
        return _JSON_NAME.search(text) is not None and _JSON_ARGUMENTS.search(text) is not None
    if not text.endswith((")", "`", ";", ",")) or len(text) > MAX_CALLS_CHARS:
        return False
    bare = _without_backticks(text)
    return is_bare_calls(bare) or (bare.endswith(")") and starts_like_a_call(bare) and "\n" not in bare)


def _without_backticks(text: str) -> str:
    """Those around each line; any other stays, and makes prose of the line."""
    if "`" not in text:
        return text.strip()
    return "\n".join(line.strip().strip("`").strip() for line in text.splitlines()).strip()


_FENCED = re.compile(r"```(?:[\w+-]*+\s++)?+(.*)```", re.DOTALL)
_EMPTY_LIST = re.compile(r"\[\s*+\]")


@dataclass(frozen=True, slots=True)
class Reading:
    """What an answer says: its calls, or the reason why they cannot be read; and the text outside of any call."""

    calls: tuple[Call, ...] = ()
    fault: str = ""
    around: str = ""


def read_answer(answer: str) -> Reading:
    """A Python list of calls where the answer opens as one; else tagged calls, if there is a tag; else no call.

    The list goes first, so that a tag in one of its arguments is only text.
    """
    text = _unfenced(answer.strip())
    try:
        if starts_like_calls(text):
            return _read_list(text)
        if OPEN in answer or CLOSE in answer:
            return _read_tagged(answer)
    except UnreadableError as unreadable:
        return Reading(fault=unreadable.reason)
    if _EMPTY_LIST.fullmatch(text):
        return Reading()
    return Reading(fault="bare_call") if is_attempt(text) else Reading(around=answer)


def inside_a_call(text: str, position: int) -> bool:
    """Whether `position` lies within a well-formed call, as a tag in an argument does."""
    if len(text) > MAX_CALLS_CHARS:
        return False
    try:
        if starts_like_calls(text):
            return bool(listed_calls(text))
        # Without an opening tag before it, the position cannot be inside, and nothing need be decoded.
        for tagged in tagged_calls(text) if text.find(OPEN, 0, position) >= 0 else ():
            if tagged.end > position:
                return tagged.start < position
    except UnreadableError:
        return False
    return False


def _unfenced(text: str) -> str:
    """A fence around all of the answer is no part of it."""
    if not text.startswith("```"):
        return text
    fenced = _FENCED.fullmatch(text)
    return fenced[1].strip() if fenced else text


def _read_list(text: str) -> Reading:
    _refuse_length(text)
    try:
        return Reading(listed_calls(text))
    except UnreadableError as unreadable:
        if OPEN in text:
            raise UnreadableError("mixed_syntax") from None
        if unreadable.reason == "malformed_call" and not text.endswith("]"):
            raise UnreadableError("unclosed_call") from None
        raise


def _read_tagged(text: str) -> Reading:
    _refuse_length(text)
    calls, gaps, end = [], [], 0
    for tagged in tagged_calls(text):
        calls.append(tagged.call)
        gaps.append(text[end : tagged.start])
        end = tagged.end
    gaps.append(text[end:])
    around = "".join(gaps)
    if CLOSE in around:
        raise UnreadableError
    if "[" in around and any(map(starts_like_calls, gaps)):
        raise UnreadableError("mixed_syntax")
    return Reading(tuple(calls), around=around)


def _refuse_length(text: str) -> None:
    if len(text) > MAX_CALLS_CHARS:
        raise UnreadableError("over_limit")
