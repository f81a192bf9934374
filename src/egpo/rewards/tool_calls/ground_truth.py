"""The expected calls in a ground truth, in every form that datasets use; and the calls of a response after its
thinking."""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from egpo.call_bounds import MAX_DEPTH
from egpo.errors import InputError
from egpo.rewards.answers import is_blank, split_thinking
from egpo.rewards.tool_calls.possible_answers import PossibleCall
from egpo.tags import THINK_TAGS
from egpo.tool_calls.answers import AnswerReading, inside_a_call, read_answer
from egpo.tool_calls.calls import Call, CallsError, call_from_json, decode, named_call
from egpo.tool_calls.python_list import starts_like_calls


def thinking_fault(text: str, tags: tuple[str, str]) -> str:
    """Return the reason why a required thinking block is not well formed; "" if it is.

    Well formed: one block, not empty, opened by the prompt or at the start of the response, and closed.
    """
    thought = split_thinking(text, tags)
    if not thought.closed:
        return "thinking_not_closed" if thought.opened else "no_thinking"
    if thought.opened and text[: text.find(tags[0])].strip():
        return "text_before_thinking"
    if tags[0] in thought.thinking:
        return "nested_thinking"
    return "empty_thinking" if is_blank(thought.thinking) else ""


def read_after_thinking(text: str, tags: tuple[str, str]) -> AnswerReading:
    """Read the calls after the thinking block. A block that is not closed is a fault: there is no answer then, which is
    not the same as an answer without calls."""
    thought = split_thinking(text, tags)
    if thought.opened and not thought.closed:
        return AnswerReading(fault="thinking_not_closed")
    return read_answer(thought.answer)


def read_unthinking(text: str, tags: tuple[str, str]) -> AnswerReading:
    """Read the calls of a response for which a thinking block is optional. If there is one, it is skipped.

    If the first thinking tag is inside a call, it is part of an argument's text and does not start a thinking block.
    """
    first_tag = min((at for at in map(text.find, tags) if at >= 0), default=-1)
    if first_tag >= 0 and inside_a_call(text, first_tag):
        return read_answer(text)
    return read_after_thinking(text, tags)


def stray_tag(reading: AnswerReading, tags: tuple[str, str]) -> bool:
    """Return whether a thinking tag is in the answer, outside of any call."""
    return tags[0] in reading.around or tags[1] in reading.around


Expected = tuple[Call, ...] | tuple[PossibleCall, ...]

_SCALARS = frozenset({str, bool, int, type(None)})
_FORMS = (
    'give calls as text, as [{"name": ..., "arguments": {...}}], or as BFCL\'s [{function: {parameter: [allowed]}}]; '
    "[] where no call is expected"
)


def read_ground_truth(ground_truth: Any) -> Expected:
    """Return the expected calls; () if no call is expected. InputError if the ground truth cannot be read.

    Text: tagged calls, a Python list of calls, or JSON; "" is no call. Prose is refused, not taken for "no call".
    Objects: a list of calls, of OpenAI tool calls, or of BFCL's possible answers, or a single one of them.
    """
    if isinstance(ground_truth, str):
        return _from_text(ground_truth)
    try:
        value = _plain(ground_truth, 0)
        return _from_text(value) if isinstance(value, str) else _from_value(value)
    except CallsError as unreadable:
        raise _refusal(unreadable.reason, ground_truth) from None


@lru_cache(maxsize=4096)
def _from_text(text: str) -> Expected:
    stripped = text.strip()
    if not stripped:
        return ()
    try:
        if stripped[0] in "[{" and not starts_like_calls(stripped):
            return _from_value(decode(stripped))
    except CallsError as unreadable:
        raise _refusal(unreadable.reason, text) from None
    reading = read_unthinking(text, THINK_TAGS)
    if not reading.calls:
        raise _refusal(reading.fault or "no_call", text)
    return reading.calls


def _from_value(value: Any) -> Expected:
    items = [value] if isinstance(value, dict) else value
    if not isinstance(items, list):
        raise CallsError
    expected = [_expected_call(item) for item in items]
    calls = tuple(one for one in expected if isinstance(one, Call))
    possible = tuple(one for one in expected if isinstance(one, PossibleCall))
    if calls and possible:
        raise CallsError("mixed_syntax")
    return calls or possible


def _expected_call(item: Any) -> Call | PossibleCall:
    if not isinstance(item, dict):
        raise CallsError
    if isinstance(function := item.get("function"), dict) and isinstance(function.get("name"), str):
        return named_call(function["name"], function.get("arguments"))
    return call_from_json(item) if isinstance(item.get("name"), str) else _possible_call(item)


def _possible_call(item: dict[str, Any]) -> PossibleCall:
    if len(item) != 1:
        raise CallsError
    ((name, allowed),) = item.items()
    if not isinstance(allowed, dict) or not all(isinstance(values, list) for values in allowed.values()):
        raise CallsError
    return PossibleCall(name, allowed)


def _plain(value: Any, depth: int) -> Any:
    """Return the value as JSON has it: arrays and tuples become lists. CallsError on what JSON cannot express."""
    if type(value) in _SCALARS:
        return value
    if depth > MAX_DEPTH:
        raise CallsError("over_limit")
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise CallsError
        return {key: _plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, depth + 1) for inner in value]
    if type(value) in _SCALARS or isinstance(value, str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise CallsError


def _refusal(reason: str, ground_truth: Any) -> InputError:
    # repr, so that a lone surrogate or a NUL cannot spoil the message
    what = f"the calls cannot be read: {reason} in {repr(ground_truth)[:120]}"
    return InputError(what, where="ground_truth", fix=_FORMS)
