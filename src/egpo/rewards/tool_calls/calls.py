"""Why a tool-call verdict came out as it did. Every verdict's reason is one of these names.

JSON read strictly: no duplicate keys, no NaN or Infinity, bounded depth and bounded numbers.

A call, and when two calls are the same.
"""

import json
import math
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from egpo.call_bounds import MAX_DEPTH, MAX_NUMBER_CHARS

REASONS: dict[str, str] = {
    "correct": "the format and every call are right",
    "no_thinking": "a thinking block was asked for and the response closes none",
    "thinking_not_closed": "the thought was opened and never closed, so there is no answer",
    "empty_thinking": "the thinking block holds nothing but white space and invisible characters",
    "text_before_thinking": "something stands before the opening tag of the thought",
    "nested_thinking": "a second opening tag stands inside the thought",
    "thinking_tag_in_answer": "a thinking tag stands in the answer, outside of any call",
    "no_call": "calls were expected and the answer has none",
    "unexpected_call": "no call was expected and the answer has one",
    "malformed_call": "a call that cannot be read: broken syntax, duplicate keys, NaN, something that is no literal",
    "unclosed_call": "a call that starts and never ends, as in a truncated answer",
    "text_after_list": "a Python list of calls has to be the whole answer, and text follows it",
    "bare_call": "a call outside of the list or the tags that would make it one",
    "mixed_syntax": "a Python list of calls and tagged calls in one answer",
    "over_limit": "nested deeper, written with longer numbers, or longer than the reader allows",
    "too_few_calls": "fewer calls than expected",
    "too_many_calls": "more calls than expected",
    "unknown_tool": "a function that is not among the tools",
    "wrong_name": "a function other than the expected one",
    "unknown_argument": "an argument that the function does not take",
    "missing_argument": "an argument that the function requires is not there",
    "wrong_type": "an argument of a type that the function does not take",
    "wrong_arguments": "the call names other arguments than the expected one",
    "wrong_value": "the right arguments, and a value that is not the expected one",
}


class UnreadableError(Exception):
    """What was written is no call. `reason` says why; caught where an answer or a ground truth is read."""

    def __init__(self, reason: str = "malformed_call") -> None:
        assert reason in REASONS
        super().__init__(reason)
        self.reason = reason


_WHITE = re.compile(r"[ \t\n\r]*+")
# A string (perhaps cut off), or a bracket. Possessive, so that no input makes it look twice.
_NESTING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+|[\[{]|[\]}]', re.DOTALL)

_NOT_ZERO = re.compile(r"[-+0._]*+[1-9]")


def decode(text: str) -> Any:
    """The one value that makes up all of `text`."""
    value, end = decode_at(text, 0, deep=may_be_deep(text))
    if _WHITE.fullmatch(text, end) is None:
        raise UnreadableError
    return value


def may_be_deep(text: str) -> bool:
    """Whether there are brackets enough for a value nested too deep. Usually there are not, at the cost of a count."""
    return text.count("{") + text.count("[") > MAX_DEPTH


def decode_at(text: str, start: int, *, deep: bool) -> tuple[Any, int]:
    """The value that begins at `start`, after white space, and where it ends. `deep` is `may_be_deep(text)`."""
    start = _WHITE.match(text, start).end()  # type: ignore[union-attr]  # matches everywhere: it may be empty
    if deep:
        _refuse_depth(text, start)
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        raise UnreadableError from error


def integer(digits: str, base: int = 10) -> int:
    """An integer of bounded length: reading one takes time that grows with the square of it."""
    if len(digits) > MAX_NUMBER_CHARS:
        raise UnreadableError("over_limit")
    return int(digits, base)


def real(digits: str) -> float:
    """A finite double: `1e999` is no number, as Infinity is none; nor is `1e-999`, which would become zero."""
    if len(digits) > MAX_NUMBER_CHARS:
        raise UnreadableError("over_limit")
    value = float(digits)
    if math.isinf(value) or (not value and _NOT_ZERO.match(digits)):
        raise UnreadableError
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise UnreadableError
    return value


def _no_constant(name: str) -> Any:
    raise UnreadableError


def _refuse_depth(text: str, start: int) -> None:
    """Walk the brackets of the value at `start` up to its end: json's own bound depends on the caller's stack."""
    depth = 0
    for match in _NESTING.finditer(text, start):
        token = match.group()
        if token[0] == '"':
            continue
        depth += 1 if token in "[{" else -1
        if depth > MAX_DEPTH:
            raise UnreadableError("over_limit")
        if depth <= 0:
            return


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_keys, parse_int=integer, parse_float=real, parse_constant=_no_constant
)


@dataclass(frozen=True, slots=True)
class Call:
    """A function's name, and its arguments as JSON values: dict, list, str, int, float, bool, None."""

    name: str
    arguments: Mapping[str, Any]


class TupleList(list[Any]):
    """A list that was written as a Python tuple: equal to a list, as JSON knows one kind of sequence.

    BFCL's checker tells them apart, so the type remembers.
    """


def same_call(a: Call, b: Call) -> bool:
    """Same name, letter by letter, and the same arguments whatever their order."""
    return a.name == b.name and same_value(a.arguments, b.arguments)


def same_value(a: Any, b: Any) -> bool:
    """Equality of JSON values: lists in order and with duplicates, 1 equals 1.0, a bool is no number."""
    # Python's own equality is quick and only too generous: what differs under it differs.
    return bool(a == b) and _same_kinds(a, b)


def _same_kinds(a: Any, b: Any) -> bool:
    """Of two values equal in Python: whether True never met 1 nor False 0, at any depth."""
    if isinstance(a, dict):
        return all(_same_kinds(value, b[key]) for key, value in a.items())
    if isinstance(a, list):
        return all(map(_same_kinds, a, b))
    return isinstance(a, bool) == isinstance(b, bool)


def canonical(value: Any) -> Hashable:
    """A form that hashes and compares alike exactly where `same_value` holds: for the many, what that is for two."""
    if isinstance(value, dict):
        return "object", frozenset((key, canonical(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return "array", *map(canonical, value)
    return ("bool", value) if isinstance(value, bool) else value


def call_from_json(value: Any) -> Call:
    """The call in a decoded `{"name": ..., "arguments": {...}}`.

    Exactly these two keys: whoever serves a Hermes model reads no other, so `parameters` and extras are malformed.
    """
    if not isinstance(value, dict) or value.keys() != {"name", "arguments"}:
        raise UnreadableError
    return named_call(value["name"], value["arguments"])


def named_call(name: Any, arguments: Any) -> Call:
    """A call out of a name and decoded arguments, which may also be the JSON text of an object."""
    if isinstance(arguments, str):
        arguments = decode(arguments)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise UnreadableError
    return Call(name, arguments)
