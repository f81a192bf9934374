"""A call, and when two calls are the same."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from egpo.rewards.tool_calls.json_values import decode
from egpo.rewards.tool_calls.reasons import UnreadableError


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
