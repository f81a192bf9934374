"""Reads tool calls of conversations (Python lists, OpenAI `tool_calls`, Hermes text) and writes them as Hermes text.

Calls of a dataset are read more leniently than those of a model (`dataset=True` in `egpo.tool_calls`). Calls that the
rewards could not read are still rejected, so that no row fails in the middle of a run.
"""

import ast
import json
from collections.abc import Iterable
from typing import Any

from egpo.tool_calls.answers import tagged_calls
from egpo.tool_calls.calls import CLOSE, OPEN, UNBOUNDED, Call, CallsError, call_from_json, require_json, unique_keys
from egpo.tool_calls.python_list import listed_calls

__all__ = [
    "CLOSE",
    "OPEN",
    "UNBOUNDED",
    "Call",
    "CallsError",
    "decode_strict",
    "hermes_parts",
    "hermes_text",
    "literal",
    "parse_hermes",
    "parse_openai",
    "parse_python_list",
    "require_json",
    "tool_responses",
    "unique_keys",
]
_MAX_LIST_CHARS = 1 << 17
"""Maximum length of a Python literal in characters: `ast` needs about a hundred times its length in memory."""


def decode_strict(text: str) -> Any:
    """Decode a text that is one JSON value.

    Raise ValueError if it is not valid JSON, or contains NaN, Infinity, or an object with two equal keys.
    """
    try:
        return UNBOUNDED.decode(text)
    except RecursionError as error:
        raise CallsError("over_limit", "nested too deeply") from error


def hermes_text(calls: Iterable[Call]) -> str:
    """Return the calls as Hermes text, one `<tool_call>` block per call; "" if there are none."""
    return "\n".join(call.hermes() for call in calls)


def parse_python_list(text: str) -> list[Call]:
    """Parse a list of calls in Python syntax, such as `[f(a=1), g.h(2)]`, without evaluating it.

    Positional arguments get the names arg_0, arg_1 and so on. Arguments must be literals.
    """
    if len(text) > _MAX_LIST_CHARS:
        raise CallsError("over_limit")
    return list(listed_calls(text, dataset=True))


def parse_openai(calls: Iterable[Any]) -> list[Call]:
    """Parse calls in OpenAI's format: {name, arguments}, or {function: {name, arguments}}.

    `arguments` may be an object or its JSON text.
    """
    return [call_from_json(call, dataset=True) for call in calls]


def parse_hermes(text: str) -> list[Call]:
    """Return the calls in the `<tool_call>` blocks of a text, in order. Text between the blocks is ignored."""
    return [part for part in hermes_parts(text) if isinstance(part, Call)]


def hermes_parts(text: str) -> list[str | Call]:
    """Split a text into its `<tool_call>` blocks and the text between them, in order. White space is left out."""
    parts: list[str | Call] = []
    end = 0
    for tagged in tagged_calls(text, dataset=True):
        parts += [text[end : tagged.start].strip(), tagged.call]
        end = tagged.end
    parts.append(text[end:].strip())
    if any(isinstance(part, str) and CLOSE in part for part in parts):
        raise CallsError  # a closing tag without its opening tag
    return [part for part in parts if part]


def tool_responses(values: Iterable[object]) -> str:
    """Return the results of tools as text, one `<tool_response>` block per value (text, or JSON)."""
    blocks = (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values)
    return "\n".join(f"<tool_response>\n{block}\n</tool_response>" for block in blocks)


def literal(text: str) -> Any:
    """Return the value of a text that is JSON or a Python literal. Return any other text unchanged."""
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


def _python_value(node: ast.expr) -> Any:
    """Return a Python literal as a JSON value: tuples become lists, and keys become text.

    Raise ValueError if two keys of an object are equal, in Python (`{'a': 1, 'a': 2}`) or in JSON (`{1: 1, '1': 2}`).
    """
    value = ast.literal_eval(node)
    for inner in () if isinstance(node, ast.Constant) else ast.walk(node):
        if isinstance(inner, ast.Dict) and len(ast.literal_eval(inner)) != len(inner.keys):
            raise CallsError
    return decode_strict(json.dumps(value, allow_nan=False))
