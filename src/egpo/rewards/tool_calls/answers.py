"""The calls of an answer, whichever syntax it uses."""

import re
from dataclasses import dataclass

from egpo.call_bounds import MAX_CALLS_CHARS
from egpo.rewards.tool_calls.attempts import is_attempt
from egpo.rewards.tool_calls.calls import Call
from egpo.rewards.tool_calls.hermes import CLOSE, OPEN, tagged_calls
from egpo.rewards.tool_calls.python_list import listed_calls, starts_like_calls
from egpo.rewards.tool_calls.reasons import UnreadableError

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
