"""Calls written in no syntax that is read: attempts, which are neither right answers nor refusals."""

import re

from egpo.call_bounds import MAX_CALLS_CHARS
from egpo.rewards.tool_calls.python_list import is_bare_calls, starts_like_a_call

_FOREIGN_MARKS = (
    "[TOOL_CALLS]",
    "<function=",
    "<function_call>",
    "<tool_calls>",
    "<|tool_call|>",
    "<|tool_calls_section_begin|>",
    "<|python_tag|>",
    "<｜tool▁calls▁begin｜>",
)
"""With which other models' templates open their calls."""

_JSON_START = re.compile(r'(?:\[\s*+)?+\{\s*+"')
_JSON_NAME = re.compile(r'"name"\s*+:\s*+"')
_JSON_ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*+:')


def is_attempt(text: str) -> bool:
    """Whether an answer in which no call was found is one all the same: calls without their list, in backticks or
    not; the JSON of a call without its tags, whatever the order of its keys; or another model's syntax.

    Prose stays prose, also where it mentions `f(a=1)` or has parentheses.
    """
    if any(mark in text for mark in _FOREIGN_MARKS):
        return True
    if _JSON_START.match(text):
        return _JSON_NAME.search(text) is not None and _JSON_ARGUMENTS.search(text) is not None
    if not text.endswith((")", "`", ";", ",")) or len(text) > MAX_CALLS_CHARS:
        return False
    bare = _without_backticks(text)
    return is_bare_calls(bare) or (bare.endswith(")") and starts_like_a_call(bare) and "\n" not in bare)


def _without_backticks(text: str) -> str:
    """Those around each line; any other stays, and makes prose of the line."""
    if "`" not in text:
        return text.strip()
    return "\n".join(line.strip().strip("`").strip() for line in text.splitlines()).strip()
