"""Right calls made wrong, or written otherwise, one change at a time."""

from collections.abc import Iterator
from typing import Any

from tests.bfcl.cases import Calls


def mutations(calls: Calls) -> Iterator[tuple[str, Calls]]:
    """(kind of change, changed calls). Some changes keep the calls right: the official checker says which."""
    yield "calls reversed", calls[::-1]
    yield "call dropped", calls[:-1]
    yield "call repeated", [*calls, calls[-1]]
    for at, call in enumerate(calls):
        for kind, changed in _changed_calls(call):
            yield kind, [*calls[:at], changed, *calls[at + 1 :]]


def _changed_calls(call: dict[str, dict[str, Any]]) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    ((name, arguments),) = call.items()
    yield "name changed", {name + "_x": arguments}
    yield "name in other case", {name.swapcase(): arguments}
    yield "name without its last dot", {name[::-1].replace(".", "_", 1)[::-1]: arguments}
    yield "arguments reversed", {name: dict(reversed(arguments.items()))}
    yield "argument added", {name: arguments | {"unheard_of": 1}}
    for kind, changed in _changed_dicts(arguments):
        yield f"argument {kind}", {name: changed}
    values = list(arguments.values())
    if len(values) > 1:
        yield "arguments rotated", {name: dict(zip(arguments, values[1:] + values[:1], strict=True))}


def _changed_dicts(values: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for key, value in values.items():
        others = {other: values[other] for other in values if other != key}
        yield "dropped", others
        yield "renamed", {**others, key + "_x": value}
        yield "renamed in other case", {**others, key.swapcase(): value}
        for kind, changed in changed_values(value):
            yield kind, values | {key: changed}


def changed_values(value: Any) -> Iterator[tuple[str, Any]]:
    yield "null", None
    yield "empty string", ""
    yield "in a list", [value]
    if not isinstance(value, str):
        yield "as string", str(value)
    yield from _BY_TYPE[type(value)](value)


def _changed_strings(value: str) -> Iterator[tuple[str, Any]]:
    yield "string upper", value.upper()
    yield "string spaced", " " + value.replace(" ", "  ") + " "
    yield "string punctuated", "-" + value.replace(" ", "_") + "."
    yield "string quoted otherwise", value.replace("'", '"')
    yield "string marked", value + "!"
    yield "string longer", value + "x"
    yield "string broken off", value[:-1]
    yield "string to number", 7
    yield "string to bool", True


def _changed_bools(value: bool) -> Iterator[tuple[str, Any]]:
    yield "bool turned", not value
    yield "bool to int", int(value)
    yield "bool to float", float(value)


def _changed_numbers(value: float) -> Iterator[tuple[str, Any]]:
    yield "number plus one", value + 1
    yield "number negated", -value
    yield "number to bool", bool(value)
    yield (
        "int to float" if isinstance(value, int) else "float to int",
        (float if isinstance(value, int) else int)(value),
    )


def _changed_lists(value: list[Any]) -> Iterator[tuple[str, Any]]:
    yield "list reversed", value[::-1]
    yield "list longer", value + value[-1:]
    yield "list shorter", value[:-1]
    yield "list emptied", []
    yield "list to dict", {}
    yield "list to tuple", tuple(value)
    for item in value[:1]:
        yield "list unwrapped", item
        for kind, changed in changed_values(item):
            yield f"item {kind}", [changed, *value[1:]]


def _changed_inner_dicts(value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "dict emptied", {}
    yield "dict to list", []
    yield "key added", value | {"unheard_of": 1}
    yield "keys reversed", dict(reversed(value.items()))
    for kind, changed in _changed_dicts(value):
        yield f"key {kind}", changed


def _unchanged(value: None) -> Iterator[tuple[str, Any]]:
    yield from ()


_BY_TYPE: dict[type, Any] = {
    str: _changed_strings,
    bool: _changed_bools,
    int: _changed_numbers,
    float: _changed_numbers,
    list: _changed_lists,
    dict: _changed_inner_dicts,
    type(None): _unchanged,
}
