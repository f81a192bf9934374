"""JSON read strictly: no duplicate keys, no NaN or Infinity, bounded depth and bounded numbers."""

import json
import math
import re
from typing import Any

from egpo.call_bounds import MAX_DEPTH, MAX_NUMBER_CHARS
from egpo.rewards.tool_calls.reasons import UnreadableError

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
