"""The calls of an answer, in whichever syntax it uses.

Hermes and Qwen syntax is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, with any text around it. Calls in
any other syntax are attempts (`is_attempt`): such an answer is wrong, even where no call is expected.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from egpo.call_bounds import MAX_CALLS_CHARS
from egpo.tool_calls.calls import CLOSE, OPEN, Call, CallsError, call_from_json, decode_at, may_be_deep
from egpo.tool_calls.python_list import is_bare_calls, listed_calls, starts_like_a_call, starts_like_calls

_END = re.compile(r"\s*+</tool_call>")


@dataclass(frozen=True, slots=True)
class Tagged:
    """One tagged call and its position in the text, tags included."""

    call: Call
    start: int
    end: int


def tagged_calls(text: str, *, dataset: bool = False) -> Iterator[Tagged]:
    """Yield every tagged call, first to last; CallsError at the first one that is incomplete.

    The end of a call is the end of its JSON value, so that a tag inside an argument is only text.
    """
    deep = may_be_deep(text)
    start = text.find(OPEN)
    while start >= 0:
        value, end = _decode_body(text, start, deep, dataset)
        closing = _END.match(text, end)
        if closing is None:
            raise _broken(text, end)
        yield Tagged(call_from_json(value, dataset=dataset), start, closing.end())
        start = text.find(OPEN, closing.end())


def _decode_body(text: str, start: int, deep: bool, dataset: bool) -> tuple[object, int]:
    try:
        return decode_at(text, start + len(OPEN), deep=deep, dataset=dataset)
    except CallsError as error:
        raise _broken(text, start) if error.reason == "malformed_call" else error from None


def _broken(text: str, start: int) -> CallsError:
    return CallsError("malformed_call" if text.find(CLOSE, start) >= 0 else "unclosed_call")


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
"""Opening marks of calls in other models' templates."""

_JSON_START = re.compile(r'(?:\[\s*+)?+\{\s*+"')
_JSON_NAME = re.compile(r'"name"\s*+:\s*+"')
_JSON_ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*+:')


def is_attempt(text: str) -> bool:
    """Return whether an answer in which no call was found attempts a call: Python calls without the list `[...]` around
    them, in backticks or not; the JSON of a call without its tags, in any order of its keys; or another model's syntax.

    Prose that mentions `f(a=1)` or has parentheses is not an attempt.
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
    """Return the text without backticks and white space around each line."""
    if "`" not in text:
        return text.strip()
    return "\n".join(line.strip().strip("`").strip() for line in text.splitlines()).strip()


_FENCED = re.compile(r"```(?:[\w+-]*+\s++)?+(.*)```", re.DOTALL)
_EMPTY_LIST = re.compile(r"\[\s*+\]")


@dataclass(frozen=True, slots=True)
class AnswerReading:
    """The calls of an answer, or the reason why they cannot be read; and the text outside of any call."""

    calls: tuple[Call, ...] = ()
    fault: str = ""
    around: str = ""


def read_answer(answer: str) -> AnswerReading:
    """Read a Python list of calls if the answer begins like one; else tagged calls, if there is a tag; else no call.

    The list comes first, so that a tag in one of its arguments is only text.
    """
    text = _unfenced(answer.strip())
    try:
        if starts_like_calls(text):
            return _read_list(text)
        if OPEN in answer or CLOSE in answer:
            return _read_tagged(answer)
    except CallsError as unreadable:
        return AnswerReading(fault=unreadable.reason)
    if _EMPTY_LIST.fullmatch(text):
        return AnswerReading()
    return AnswerReading(fault="bare_call") if is_attempt(text) else AnswerReading(around=answer)


def inside_a_call(text: str, position: int) -> bool:
    """Return whether `position` lies within a well-formed call, as a tag in an argument does."""
    if len(text) > MAX_CALLS_CHARS:
        return False
    try:
        if starts_like_calls(text):
            return bool(listed_calls(text))
        # Without an opening tag before it, the position cannot be inside, and nothing need be decoded.
        for tagged in tagged_calls(text) if text.find(OPEN, 0, position) >= 0 else ():
            if tagged.end > position:
                return tagged.start < position
    except CallsError:
        return False
    return False


def _unfenced(text: str) -> str:
    """Remove a code fence around the whole answer."""
    if not text.startswith("```"):
        return text
    fenced = _FENCED.fullmatch(text)
    return fenced[1].strip() if fenced else text


def _read_list(text: str) -> AnswerReading:
    _refuse_length(text)
    try:
        return AnswerReading(listed_calls(text))
    except CallsError as unreadable:
        if OPEN in text:
            raise CallsError("mixed_syntax") from None
        if unreadable.reason == "malformed_call" and not text.endswith("]"):
            raise CallsError("unclosed_call") from None
        raise


def _read_tagged(text: str) -> AnswerReading:
    _refuse_length(text)
    calls, gaps, end = [], [], 0
    for tagged in tagged_calls(text):
        calls.append(tagged.call)
        gaps.append(text[end : tagged.start])
        end = tagged.end
    gaps.append(text[end:])
    around = "".join(gaps)
    if CLOSE in around:
        raise CallsError
    if "[" in around and any(map(starts_like_calls, gaps)):
        raise CallsError("mixed_syntax")
    return AnswerReading(tuple(calls), around=around)


def _refuse_length(text: str) -> None:
    if len(text) > MAX_CALLS_CHARS:
        raise CallsError("over_limit")
