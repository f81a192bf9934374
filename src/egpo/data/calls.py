"""Tool calls in conversations: Python lists, OpenAI `tool_calls` and Hermes text in; Hermes text out.

A dataset is read here, not a model's answer: `egpo.tool_calls` in its lenient form (`dataset=True`), which still
refuses what the rewards could not read back. No row may be refused in the middle of a run.
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
"""A longer Python literal is not read: `ast` needs some hundred times its length in memory."""


def decode_strict(text: str) -> Any:
    """Return one whole JSON value; ValueError on anything else, on NaN and Infinity, and on a key that comes twice."""
    try:
        return UNBOUNDED.decode(text)
    except RecursionError as error:
        raise CallsError("over_limit", "nested too deeply") from error


def hermes_text(calls: Iterable[Call]) -> str:
    """Return all calls as text, one block after another; "" for none."""
    return "\n".join(call.hermes() for call in calls)


def parse_python_list(text: str) -> list[Call]:
    """Read `[f(a=1), g.h(2)]`: positional arguments become arg_0, arg_1. Literals only; nothing is evaluated."""
    if len(text) > _MAX_LIST_CHARS:
        raise CallsError("over_limit")
    return list(listed_calls(text, dataset=True))


def parse_openai(calls: Iterable[Any]) -> list[Call]:
    """Read OpenAI's `tool_calls`, wrapped in `function` or bare; `arguments` as an object or as its JSON text."""
    return [call_from_json(call, dataset=True) for call in calls]


def parse_hermes(text: str) -> list[Call]:
    """Return the `<tool_call>` blocks of a text, in order; other text between them is ignored."""
    return [part for part in hermes_parts(text) if isinstance(part, Call)]


def hermes_parts(text: str) -> list[str | Call]:
    """Split a text into words and calls, in order. Words that are only white space are left out."""
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
    """Return one `<tool_response>` block per value: text as it is, everything else as JSON."""
    blocks = (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values)
    return "\n".join(f"<tool_response>\n{block}\n</tool_response>" for block in blocks)


def literal(text: str) -> Any:
    """Return the value that a text writes as JSON or as a Python literal; the text itself if it writes none."""
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
    """Return the JSON value of a Python literal: tuples become lists, keys become text.

    ValueError on a key that comes twice, in Python (`{'a': 1, 'a': 2}`) or in JSON (`{1: 1, '1': 2}`).
    """
    value = ast.literal_eval(node)
    for inner in () if isinstance(node, ast.Constant) else ast.walk(node):
        if isinstance(inner, ast.Dict) and len(ast.literal_eval(inner)) != len(inner.keys):
            raise CallsError
    return decode_strict(json.dumps(value, allow_nan=False))
