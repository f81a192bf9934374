"""Tool calls, the strict reading of JSON values, and the equality of two calls.

JSON is read strictly: no duplicate keys, no NaN or Infinity, bounded depth and bounded numbers. A dataset
(`dataset=True`) may write longer numbers and deeper values; `checked_call` then refuses those that the strict reader
could not read back, so that no prepared row is refused in the middle of a run.
"""

import json
import math
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from egpo.call_bounds import MAX_DEPTH, MAX_NUMBER_CHARS

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_JSON_SPACE, _ANY_SPACE = re.compile(r"[ \t\n\r]*+"), re.compile(r"\s*+")
# A string (perhaps cut off), or a bracket. Possessive quantifiers, so that no input causes backtracking.
_NESTING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+|[\[{]|[\]}]', re.DOTALL)
_NOT_ZERO = re.compile(r"[-+0._]*+[1-9]")


class CallsError(ValueError):
    """An error for text that should contain calls and cannot be read. `reason` is a reason of the tool-call reward."""

    def __init__(self, reason: str = "malformed_call", detail: str = "") -> None:
        super().__init__(detail or reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Call:
    """A function's name, and its arguments as JSON values: dict, list, str, int, float, bool, None."""

    name: str
    arguments: Mapping[str, Any]

    def hermes(self) -> str:
        """Return the call as Qwen's chat template writes it: JSON with default separators, non-ASCII characters
        unescaped, and keys in the given order."""
        body = json.dumps({"name": self.name, "arguments": self.arguments}, ensure_ascii=False)
        return f"{OPEN}\n{body}\n{CLOSE}"


class TupleList(list[Any]):
    """A list that was written as a Python tuple. It equals a list, as JSON has one kind of sequence.

    The type exists because BFCL's checker distinguishes lists and tuples.
    """


def call_from_json(value: Any, *, dataset: bool = False) -> Call:
    """Return the call in a decoded `{"name": ..., "arguments": {...}}`.

    By default it has exactly these two keys, since servers of Hermes models read no others. With `dataset=True` it may
    be inside OpenAI's `{"function": {...}}`, have further keys, and lack arguments.
    """
    if dataset:
        inner = value.get("function", value) if isinstance(value, Mapping) else None
        if not isinstance(inner, Mapping):
            raise CallsError
        return named_call(inner.get("name"), inner.get("arguments"), dataset=True)
    if not isinstance(value, dict) or value.keys() != {"name", "arguments"}:
        raise CallsError
    return named_call(value["name"], value["arguments"])


def named_call(name: Any, arguments: Any, *, dataset: bool = False) -> Call:
    """Return a call with this name and these decoded arguments, which may also be the JSON text of an object."""
    if dataset and arguments in (None, ""):
        arguments = {}
    if isinstance(arguments, str):
        arguments = decode(arguments, dataset=dataset)
    if not isinstance(name, str) or not name or not isinstance(arguments, Mapping if dataset else dict):
        raise CallsError
    return checked_call(name, arguments) if dataset else Call(name, arguments)


def checked_call(name: str, arguments: Mapping[str, Any]) -> Call:
    """Return a call whose text the strict reader can read; CallsError otherwise."""
    require_json(arguments, MAX_DEPTH - 1)  # the call is an object around its arguments: one level of the depth is used
    return Call(name, arguments)


def same_call(a: Call, b: Call) -> bool:
    """Return whether two calls have the same name, letter by letter, and the same arguments in any order."""
    return a.name == b.name and same_value(a.arguments, b.arguments)


def same_value(a: Any, b: Any) -> bool:
    """Return whether two JSON values are equal: lists in order and with duplicates, 1 as 1.0, a bool never a number."""
    # Python's `==` is fast, and values that differ under it also differ here.
    return bool(a == b) and _same_kinds(a, b)


def _same_kinds(a: Any, b: Any) -> bool:
    """Return whether two values that are equal in Python have bools in the same places, at any depth: True is not 1."""
    if isinstance(a, dict):
        return all(_same_kinds(value, b[key]) for key, value in a.items())
    if isinstance(a, list):
        return all(map(_same_kinds, a, b))
    return isinstance(a, bool) == isinstance(b, bool)


def canonical(value: Any) -> Hashable:
    """Return a hashable form of a value. Two forms are equal exactly if `same_value` is True for the values."""
    if isinstance(value, dict):
        return "object", frozenset((key, canonical(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return "array", *map(canonical, value)
    return ("bool", value) if isinstance(value, bool) else value


def decode(text: str, *, dataset: bool = False) -> Any:
    """Return the one JSON value that makes up all of `text`."""
    value, end = decode_at(text, 0, deep=may_be_deep(text), dataset=dataset)
    if _JSON_SPACE.fullmatch(text, end) is None:
        raise CallsError
    return value


def may_be_deep(text: str) -> bool:
    """Return whether a text has enough brackets to be nested too deep. If not, the exact check is not needed."""
    return text.count("{") + text.count("[") > MAX_DEPTH


def decode_at(text: str, start: int, *, deep: bool, dataset: bool = False) -> tuple[Any, int]:
    """Return the value that begins at `start`, after white space, and where it ends. `deep` is `may_be_deep(text)`."""
    start = (_ANY_SPACE if dataset else _JSON_SPACE).match(text, start).end()  # type: ignore[union-attr]  # may be empty
    if deep and not dataset:
        _refuse_depth(text, start)
    try:
        return (UNBOUNDED if dataset else _BOUNDED).raw_decode(text, start)
    except CallsError:
        raise
    except (ValueError, RecursionError) as error:
        raise CallsError from error


def integer(digits: str, base: int = 10) -> int:
    """Read an integer of bounded length: the time to read one grows with the square of its length."""
    if len(digits) > MAX_NUMBER_CHARS:
        raise CallsError("over_limit")
    return int(digits, base)


def real(digits: str) -> float:
    """Read a finite float. CallsError on `1e999`, which would be infinite, and on `1e-999`, which would become zero."""
    if len(digits) > MAX_NUMBER_CHARS:
        raise CallsError("over_limit")
    value = float(digits)
    if math.isinf(value) or (not value and _NOT_ZERO.match(digits)):
        raise CallsError
    return value


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict (for `object_pairs_hook`); CallsError on a duplicate key."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise CallsError(detail="a key occurs twice")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise CallsError(detail=f"{name} is not JSON")


_BOUNDED = json.JSONDecoder(
    object_pairs_hook=unique_keys, parse_int=integer, parse_float=real, parse_constant=_refuse_constant
)
UNBOUNDED = json.JSONDecoder(object_pairs_hook=unique_keys, parse_constant=_refuse_constant)
"""A decoder of strict JSON without limits on numbers and depth, for datasets."""


def _refuse_depth(text: str, start: int) -> None:
    """Raise CallsError if the value at `start` is nested too deep: json's own limit depends on the caller's stack."""
    depth = 0
    for match in _NESTING.finditer(text, start):
        token = match.group()
        if token[0] == '"':
            continue
        depth += 1 if token in "[{" else -1
        if depth > MAX_DEPTH:
            raise CallsError("over_limit")
        if depth <= 0:
            return


def require_json(value: Any, max_depth: int = MAX_DEPTH) -> None:
    """Raise CallsError on what the strict reader refuses: other types, keys that are not text, numbers that are not
    finite or too long, containers nested more than `max_depth` deep."""
    if _is_scalar(value):
        return
    if isinstance(value, list | tuple):
        _require_items(value, max_depth)
    elif isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        _require_items(value.values(), max_depth)
    else:
        raise CallsError(detail=f"a {type(value).__name__} that is not a JSON value, or a number out of bounds")


def _require_items(items: Any, max_depth: int) -> None:
    if max_depth < 1:
        raise CallsError("over_limit", "nested too deeply")
    for item in items:
        require_json(item, max_depth - 1)


def _is_scalar(value: Any) -> bool:
    if isinstance(value, str | bool | None):
        return True
    if isinstance(value, int):
        # The bit length is checked first: Python refuses to write out an integer of thousands of digits.
        return value.bit_length() < 4 * MAX_NUMBER_CHARS and len(str(value)) <= MAX_NUMBER_CHARS
    return isinstance(value, float) and math.isfinite(value)
