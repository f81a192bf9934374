"""JSON of calls and tools, held to what the rewards read: no row may be refused in the middle of a run."""

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from egpo.call_bounds import MAX_DEPTH, MAX_NUMBER_CHARS


def decode_strict(text: str) -> Any:
    """One whole value. ValueError on anything else, on NaN and Infinity, and on a key that comes twice."""
    try:
        return STRICT.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def require_json(value: Any, max_depth: int = MAX_DEPTH) -> None:
    """ValueError on what the rewards would not read: other types, keys that are not text, numbers that are not finite
    or too long, containers nested more than `max_depth` deep."""
    if _is_scalar(value):
        return
    if isinstance(value, list | tuple):
        _require_items(value, max_depth)
    elif isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        _require_items(value.values(), max_depth)
    else:
        raise ValueError(f"{type(value).__name__} that is not JSON, or a number out of bounds")


def _require_items(items: Any, max_depth: int) -> None:
    if max_depth < 1:
        raise ValueError("nested too deeply")
    for item in items:
        require_json(item, max_depth - 1)


def _is_scalar(value: Any) -> bool:
    if isinstance(value, str | bool | None):
        return True
    if isinstance(value, int):
        # The logarithm first: Python refuses to spell an integer of thousands of digits.
        return value.bit_length() < 4 * MAX_NUMBER_CHARS and len(str(value)) <= MAX_NUMBER_CHARS
    return isinstance(value, float) and math.isfinite(value)


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `object_pairs_hook`: the last of two values under one key would silently win."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key comes twice")
    return value


def refuse_constant(name: str) -> NoReturn:
    """For `parse_constant`."""
    raise ValueError(f"{name} is not JSON")


STRICT = json.JSONDecoder(parse_constant=refuse_constant, object_pairs_hook=unique_keys)
