"""JSON of calls and tools, held to what the rewards read: no row may be refused in the middle of a run.

Tool calls in conversations: Python lists, OpenAI `tool_calls` and Hermes text in; Hermes text out.

What is read here is a dataset, not a model's answer: `egpo.rewards.tool_calls` judges those, by stricter rules.
"""

import ast
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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


OPEN, CLOSE = "<tool_call>", "</tool_call>"
_MAX_LIST_CHARS = 1 << 17
"""Beyond this a Python list is not parsed: `ast` needs some hundred times its length in memory."""


class CallsError(ValueError):
    """Text that should hold calls and does not."""


@dataclass(frozen=True)
class Call:
    """A function's name and its arguments, as JSON values."""

    name: str
    arguments: Mapping[str, Any]

    def hermes(self) -> str:
        """The text that Qwen's chat template writes: default separators, characters unescaped, keys in order."""
        body = json.dumps({"name": self.name, "arguments": self.arguments}, ensure_ascii=False)
        return f"{OPEN}\n{body}\n{CLOSE}"

    @staticmethod
    def checked(name: str, arguments: Mapping[str, Any]) -> "Call":
        """Raises `CallsError` where the rewards would not read the call's text."""
        try:
            # The call is an object around its arguments: one level of the depth is spent.
            require_json(arguments, MAX_DEPTH - 1)
        except ValueError as error:
            raise CallsError(f"arguments that no reward reads ({error})") from error
        return Call(name, arguments)


def hermes_text(calls: Iterable[Call]) -> str:
    """All calls, one block after another; "" for none."""
    return "\n".join(call.hermes() for call in calls)


def parse_python_list(text: str) -> list[Call]:
    """`[f(a=1), g.h(2)]`: positional arguments become arg_0, arg_1. Literals only; nothing is evaluated."""
    if len(text) > _MAX_LIST_CHARS:
        raise CallsError("too long")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if not isinstance(tree, ast.List):
            raise CallsError("not a list")
        return [_call(node) for node in tree.elts]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CallsError(f"not a list of calls ({error})") from error


def parse_openai(calls: Iterable[Any]) -> list[Call]:
    """OpenAI's `tool_calls`, wrapped in `function` or bare; `arguments` as an object or as its JSON text."""
    return [_openai_call(call) for call in calls]


def parse_hermes(text: str) -> list[Call]:
    """The `<tool_call>` blocks of a text, in order; other text between them is passed over."""
    return [part for part in hermes_parts(text) if isinstance(part, Call)]


def hermes_parts(text: str) -> list[str | Call]:
    """A text as words and calls, in order; no words where there is only white space."""
    parts: list[str | Call] = []
    words, tag, rest = text.partition(OPEN)
    while tag:
        call, rest = _tagged_call(rest)
        parts += [words, call]
        words, tag, rest = rest.partition(OPEN)
    parts = [part.strip() if isinstance(part, str) else part for part in [*parts, words]]
    if any(isinstance(part, str) and CLOSE in part for part in parts):
        raise CallsError("</tool_call> without its start")
    return [part for part in parts if part]


def _tagged_call(text: str) -> tuple[Call, str]:
    """The call whose opening tag has just been read, and the text after its closing tag."""
    body = text.lstrip()
    try:
        value, end = STRICT.raw_decode(body)
    except (ValueError, RecursionError) as error:
        raise CallsError("not JSON inside <tool_call>") from error
    rest = body[end:].lstrip()
    if not rest.startswith(CLOSE):
        raise CallsError("<tool_call> without its end")
    return _openai_call(value), rest.removeprefix(CLOSE)


def tool_responses(values: Iterable[object]) -> str:
    """One `<tool_response>` block a value: text as it is, everything else as JSON."""
    blocks = (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values)
    return "\n".join(f"<tool_response>\n{block}\n</tool_response>" for block in blocks)


def literal(text: str) -> Any:
    """The value that a text spells as JSON or as Python's repr; the text itself where it spells none."""
    try:
        return decode_strict(text)
    except ValueError:
        pass
    if len(text) > _MAX_LIST_CHARS:
        return text
    try:
        return _python_value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return text


def _openai_call(value: Any) -> Call:
    call = value.get("function", value) if isinstance(value, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(call.get("name"), str) or not call["name"]:
        raise CallsError("a call without a name")
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = decode_strict(arguments or "{}")
        except ValueError as error:
            raise CallsError("arguments are not JSON") from error
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise CallsError("arguments are not an object")
    return Call.checked(call["name"], arguments)


def _call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or any(keyword.arg is None for keyword in node.keywords):
        raise CallsError("an element of the list is not a call")
    positional = {f"arg_{i}": _literal(value) for i, value in enumerate(node.args)}
    named = {keyword.arg: _literal(keyword.value) for keyword in node.keywords if keyword.arg}
    arguments = {**positional, **named}
    if len(arguments) != len(node.args) + len(node.keywords):
        raise CallsError("an argument is given twice")
    return Call.checked(_dotted(node.func), arguments)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise CallsError("the function is not a plain name")


def _literal(node: ast.expr) -> Any:
    # JSON's own names for the constants turn up in such lists; they are names to Python.
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[node.id]
    try:
        return _python_value(node)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise CallsError("an argument is not a literal") from error


def _python_value(node: ast.expr) -> Any:
    """The JSON value of a Python literal: tuples are lists, keys are text. Refuses a key that comes twice, in Python
    (`{'a': 1, 'a': 2}`) or in JSON (`{1: 1, '1': 2}`)."""
    value = ast.literal_eval(node)
    for inner in () if isinstance(node, ast.Constant) else ast.walk(node):
        if isinstance(inner, ast.Dict) and len(ast.literal_eval(inner)) != len(inner.keys):
            raise ValueError("a key comes twice")
    return decode_strict(json.dumps(value, allow_nan=False))
