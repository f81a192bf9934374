"""The conversion of values to plain Python: verl and pandas pass numpy objects, tensors, bytes and JSON text.

numpy and torch are not imported: arrays, tensors and series all have `tolist`.
"""

import json
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

from egpo.errors import InputError

MAX_DEPTH = 100
_SCALARS = frozenset({str, int, float, bool, type(None)})


def plain(value: Any, depth: int = 0) -> Any:
    """Return the value as JSON has it: text, numbers, lists and dicts. A value of another kind stays as it is.

    A 0-d array becomes its element; a tensor (nested or not), an array or a series becomes a list; bytes become text.
    """
    if type(value) in _SCALARS:
        return value
    if depth > MAX_DEPTH:
        what = f"a value is nested deeper than {MAX_DEPTH} levels"
        raise InputError(what, where="reward input", fix="give values with fewer levels")
    if isinstance(value, str):
        return str(value)  # numpy's own string type
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    if getattr(value, "is_nested", False):
        return [plain(inner, depth + 1) for inner in value.unbind()]
    if hasattr(value, "tolist"):
        return plain(value.tolist(), depth + 1)
    if isinstance(value, Mapping):
        return {plain(key, depth + 1): plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, Sequence | Set):
        return [plain(inner, depth + 1) for inner in value]
    return value


def single(value: Any) -> Any:
    """Return the value without any lists of one element around it."""
    value = plain(value)
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value


def text_of(value: Any, name: str) -> str:
    """Return a text, taken out of bytes, arrays and lists of one element; InputError if the value is not text."""
    if type(value) is str:
        return value
    found = single(value)
    if not isinstance(found, str):
        raise InputError(f"{found!r:.80} is not text", where=name, fix="give a string")
    return found


def fields_of(value: Any, name: str) -> Mapping[str, Any]:
    """Return a mapping, or the mapping in a JSON text; {} for None and empty text. Its values are not converted."""
    if value is None or isinstance(value, Mapping):
        return value or {}
    found = single(value)
    if isinstance(found, str):
        found = from_json(found, name) if found.strip() else {}
    if found is None or isinstance(found, Mapping):
        return found or {}
    raise InputError(f"{found!r:.80} is not a mapping", where=name, fix="give a dict, or the JSON text of one")


def from_json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the text is not JSON: {text!r:.80}", where=name, fix="give valid JSON") from error


def with_defaults(extra: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return `extra` with the default of each setting that it does not have."""
    return {**extra, **{name: value for name, value in defaults.items() if is_missing(plain(extra.get(name)))}}


def first_present(row: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """Return the value, as plain Python, of the first key that has a value in the row; None if none has one."""
    values = (plain(row[key]) for key in keys if key in row)
    return next((value for value in values if not is_missing(value)), None)


def finite(value: int | float) -> float | None:
    """Return the number as a float; None if it is NaN, infinite, or too large."""
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def is_missing(value: Any) -> bool:
    """Return whether a value is None, or the NaN of an empty cell of a table."""
    return value is None or (isinstance(value, float) and value != value)
