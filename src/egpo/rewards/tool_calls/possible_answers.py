"""BFCL's ground truths, `[{function: {parameter: [allowed values]}}]`, judged as its single-turn AST checker does.

An allowed value of "" means that the parameter may be left out. Types are strict, except that an int is accepted where
a float is documented. Strings are compared without case, spaces and `,./-_*^`; lists in order. If the allowed
values do not have the documented type, they are names of variables, and a value must equal one of them exactly.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from egpo.rewards.tool_calls.tools import Tool, Toolbox, type_names
from egpo.tool_calls.calls import Call, TupleList, same_value

_KINDS: dict[str, type] = {
    "string": str, "any": str, "integer": int, "number": float, "boolean": bool,
    "array": list, "tuple": list, "object": dict,
}  # fmt: skip
_INSIGNIFICANT = str.maketrans("'", '"', " ,./-_*^")


@dataclass(frozen=True, slots=True)
class PossibleCall:
    """A function's name, and for each of its parameters the values that are right."""

    name: str
    allowed: Mapping[str, Sequence[Any]]


def possible_call_fault(call: Call, answer: PossibleCall, tools: Toolbox | None) -> str:
    """Return the reason why a call does not match a possible answer; "" if it does."""
    if call.name != answer.name:
        return "wrong_name"
    tool = tools.tool(call.name) if tools else None
    if tool and not tool.required <= call.arguments.keys():
        return "missing_argument"
    for name, value in call.arguments.items():
        if name not in answer.allowed or (tool and name not in tool.parameters):
            return "unknown_argument"
        if fault := _value_fault(value, answer.allowed[name], _schema(tool, name)):
            return fault
    left_out = answer.allowed.keys() - call.arguments.keys()
    return "" if all("" in answer.allowed[name] for name in left_out) else "missing_argument"


def _schema(tool: Tool | None, name: str) -> Mapping[str, Any]:
    return tool.parameters[name] if tool else {}


def _value_fault(value: Any, allowed: Sequence[Any], schema: Mapping[str, Any]) -> str:
    """Return the reason why a value is not allowed; "" if it is. The type, which must be the documented one or that of
    the allowed values, is checked first."""
    documented, answered = _kind(schema), _first_type(allowed)
    # A fast path, with the same result as the rules below: a documented string that is among the allowed values.
    if type(value) is documented is str and value in allowed:
        return ""
    kinds = {documented, answered} if documented else {type(answer) for answer in allowed if answer != ""}
    if type(value) is int and (documented is float or (int not in kinds and float in kinds)):
        value = float(value)
    elif type(value) is TupleList and (not documented or "tuple" in type_names(schema)):
        value = list(value)
    if type(value) not in kinds or _holds_tuple(value):
        return "wrong_type"
    if type(value) is documented is list and not _items_fit(value, allowed, _kind(schema.get("items"))):
        return "wrong_type"
    stands_for_variable = documented and answered not in (None, documented)
    fits = same_value if stands_for_variable else _COMPARISONS.get(type(value), same_value)
    return "" if any(fits(value, answer) for answer in allowed) else "wrong_value"


def _holds_tuple(value: Any) -> bool:
    """Return whether the value contains a tuple. Answers are JSON, in which nothing equals a tuple."""
    if isinstance(value, dict):
        return any(map(_holds_tuple, value.values()))
    return type(value) is TupleList or (type(value) is list and any(map(_holds_tuple, value)))


def _kind(schema: Any) -> type | None:
    """Return the one Python type of a schema; None if it has none or several."""
    names = type_names(schema)
    return _KINDS.get(names[0]) if len(names) == 1 else None


def _items_fit(items: list[Any], allowed: Sequence[Any], kind: type | None) -> bool:
    """Return whether the items have the documented type, or the type of the items of one of the answers.

    An answer that is no list, such as the "" of an optional parameter, allows items of any type.
    """
    if kind is None:
        return True
    return any(not isinstance(answer, list) or _all_of(items, {kind, _first_type(answer)}) for answer in allowed)


def _first_type(values: Sequence[Any]) -> type | None:
    return next((type(value) for value in values if value != ""), None)


def _all_of(items: list[Any], kinds: set[type | None]) -> bool:
    return all(type(item) in kinds for item in items)


def _significant(value: Any) -> Any:
    """Return a string without the characters that do not count; any other value unchanged."""
    return value.translate(_INSIGNIFICANT).lower() if isinstance(value, str) else value


def _same_string(value: str, answer: Any) -> bool:
    return isinstance(answer, str) and _significant(value) == _significant(answer)


def _same_list(value: list[Any], answer: Any) -> bool:
    """Compare lists item by item, in order. The "" of an optional parameter also allows the empty list."""
    if answer == "":
        return not value
    if not isinstance(answer, list) or len(value) != len(answer):
        return False
    return all(_same_item(item, wanted) for item, wanted in zip(value, answer, strict=True))


def _same_item(item: Any, wanted: Any) -> bool:
    # A dictionary among the answers is a table of allowed values, not a value.
    if isinstance(item, dict) and isinstance(wanted, dict):
        return _same_dict(item, wanted)
    return same_value(_significant(item), _significant(wanted))


def _same_dict(value: dict[str, Any], answer: Any) -> bool:
    """Return whether a dict matches `answer`, which lists the allowed values of each key."""
    if not isinstance(answer, dict) or not value.keys() <= answer.keys():
        return False
    if any("" not in _choices(answer[key]) for key in answer.keys() - value.keys()):
        return False
    return all(
        any(same_value(_significant(inner), _significant(one)) for one in _choices(answer[key]))
        for key, inner in value.items()
    )


def _choices(allowed: Any) -> Sequence[Any]:
    """Return the allowed values of a key; simpler data has a single value instead of a list."""
    return allowed if isinstance(allowed, list) else [allowed]


_COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {str: _same_string, list: _same_list, dict: _same_dict}
