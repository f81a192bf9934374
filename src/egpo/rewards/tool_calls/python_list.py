"""String literals of Python: their pattern, and the text that they stand for.

Python-list syntax: `[f(a=1), g.h(b=[1, 2])]`, as BFCL's prompt asks for it. Read, never evaluated.

A reader of its own instead of `ast`: Python's documentation warns that `ast.parse` can crash the interpreter on
deep nesting, and it builds a tree of everything the language has to find a handful of literals. Where this reader
accepts a text, `ast.literal_eval` gives the same values (a test holds that), but that a tuple is a kind of list.
"""

import re
import unicodedata
from typing import Any

from egpo.call_bounds import MAX_DEPTH
from egpo.rewards.tool_calls.calls import Call, TupleList, UnreadableError, integer, real

# Possessive throughout: an unterminated string is given up after one look, whatever it holds.
_TRIPLE_DOUBLE = r'"""[^"\\]*+(?:(?:\\.|"(?!""))[^"\\]*+)*+"""'
_TRIPLE_SINGLE = r"'''[^'\\]*+(?:(?:\\.|'(?!''))[^'\\]*+)*+'''"
_DOUBLE = r'(?!""")"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"'
_SINGLE = r"(?!''')'[^'\\\n]*+(?:\\.[^'\\\n]*+)*+'"
STRING = rf"[rRuU]?+(?:{_DOUBLE}|{_SINGLE}|{_TRIPLE_DOUBLE}|{_TRIPLE_SINGLE})"

_ESCAPE = re.compile(
    r"\\(?:(?P<plain>[\n\\'\"abfnrtv])|(?P<octal>[0-7]{1,3})|(?P<hex>x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"
    r"|N\{(?P<name>[^{}]{1,100})\}|(?P<broken>[xuUN]))"
)
_PLAIN = {"\n": "", "\\": "\\", "'": "'", '"': '"'} | dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))


def string_value(literal: str) -> str:
    """What a matched literal says. An escape that Python does not know keeps its backslash, as in Python."""
    raw = literal[0] in "rR"
    if literal[0] in "rRuU":
        literal = literal[1:]
    width = 3 if literal[:3] in ('"""', "'''") and len(literal) >= 6 else 1
    inside = literal[width:-width]
    return inside if raw or "\\" not in inside else _ESCAPE.sub(_unescaped, inside)


def _unescaped(escape: re.Match[str]) -> str:
    kind, what = escape.lastgroup, escape[escape.lastgroup or 0]
    try:
        if kind == "plain":
            return _PLAIN[what]
        if kind == "octal":
            return chr(int(what, 8))
        if kind == "hex":
            return chr(int(what[1:], 16))
        if kind == "name":
            return unicodedata.lookup(what)
    except (ValueError, KeyError, OverflowError) as error:
        raise UnreadableError from error
    raise UnreadableError


_NAME = r"(?!(?:True|False|None)\b)[^\W\d]\w*+"
_HEAD = re.compile(rf"\s*+({_NAME}(?:\.{_NAME})*+)\s*+\(")
_START = re.compile(rf"\s*+\[\s*+{_NAME}(?:\.{_NAME})*+\s*+\(")
_BETWEEN = " \t\r\n,;"
_KEYWORD = re.compile(rf"\s*+({_NAME})\s*+=(?!=)")
_MARK = re.compile(r"\s*+([\[\](){},:])")
_VALUE = re.compile(
    r"\s*+(?:"
    rf"(?P<string>{STRING})"
    r"|(?P<sign>[-+]?+)\s*+(?:"
    r"(?P<real>(?:[0-9][0-9_]*+\.[0-9_]*+|\.[0-9][0-9_]*+)(?:[eE][-+]?+[0-9][0-9_]*+)?+|[0-9][0-9_]*+[eE][-+]?+[0-9][0-9_]*+)"
    r"|(?P<integer>0[xXoObB][0-9a-fA-F_]++|[0-9][0-9_]*+))(?![\w.])"
    r"|(?P<constant>True|False|None)(?!\w)"
    r"|(?P<opening>[\[({]))",
    re.DOTALL,
)
_NEXT_STRING = re.compile(rf"\s*+(?P<string>{STRING})", re.DOTALL)
_CONSTANTS = {"True": True, "False": False, "None": None}


def starts_like_calls(text: str) -> bool:
    """Whether `text` opens as a list of calls does: `[name(`."""
    return _START.match(text) is not None


def is_bare_calls(text: str) -> bool:
    """Whether all of `text` is calls without their list, one after the other or with a comma or semicolon between."""
    rest, end = text.rstrip(_BETWEEN), 0
    try:
        while end < len(rest):
            _, end = _call(rest, end)
            while end < len(rest) and rest[end] in _BETWEEN:
                end += 1
    except UnreadableError:
        return False
    return end > 0


def starts_like_a_call(text: str) -> bool:
    """Whether `text` opens with a call that names an argument: `name(argument=`."""
    head = _HEAD.match(text)
    return head is not None and _KEYWORD.match(text, head.end()) is not None


def listed_calls(text: str) -> tuple[Call, ...]:
    """The calls of a text that is one list of calls and nothing else."""
    calls = []
    mark, end = _mark(text, 0)
    if mark != "[":
        raise UnreadableError
    while not (closing := _closing(text, end, "]")):
        call, end = _call(text, end)
        calls.append(call)
        end = _separator(text, end, "]")
    if text[closing:].strip():
        raise UnreadableError("text_after_list")
    return tuple(calls)


def _call(text: str, start: int) -> tuple[Call, int]:
    """One call. Positional arguments are named arg_0, arg_1, as in converted conversations."""
    head = _HEAD.match(text, start)
    if head is None:
        raise UnreadableError
    end = head.end()
    arguments: dict[str, Any] = {}
    positional = 0
    while not (closing := _closing(text, end, ")")):
        keyword = _KEYWORD.match(text, end)
        if keyword is not None:
            name, end = keyword[1], keyword.end()
        elif positional == len(arguments):
            name, positional = f"arg_{positional}", positional + 1
        else:
            raise UnreadableError
        if name in arguments:
            raise UnreadableError
        arguments[name], end = _value(text, end, 1)
        end = _separator(text, end, ")")
    return Call(head[1], arguments), closing


def _value(text: str, start: int, depth: int) -> tuple[Any, int]:
    match = _VALUE.match(text, start)
    if match is None:
        raise UnreadableError
    kind, end = match.lastgroup, match.end()
    if kind == "string":
        return _joined_strings(text, match["string"], end)
    if kind == "constant":
        return _CONSTANTS[match["constant"]], end
    if kind == "opening":
        if depth >= MAX_DEPTH:
            raise UnreadableError("over_limit")
        return _CONTAINERS[match["opening"]](text, end, depth + 1)
    return _number(match), end


def _number(match: re.Match[str]) -> int | float:
    try:
        value = real(match["real"]) if match["real"] else integer(match["integer"], 0)
    except ValueError as error:
        raise UnreadableError from error
    return -value if match["sign"] == "-" else value


def _joined_strings(text: str, first: str, end: int) -> tuple[str, int]:
    """Strings side by side are one string, as in Python."""
    value = string_value(first)
    following = _NEXT_STRING.match(text, end)
    if following is None:
        return value, end
    pieces = [value]
    while following is not None:
        pieces.append(string_value(following["string"]))
        end = following.end()
        following = _NEXT_STRING.match(text, end)
    return "".join(pieces), end


def _list(text: str, end: int, depth: int) -> tuple[list[Any], int]:
    items = []
    while not (closing := _closing(text, end, "]")):
        item, end = _value(text, end, depth)
        items.append(item)
        end = _separator(text, end, "]")
    return items, closing


def _tuple(text: str, end: int, depth: int) -> tuple[Any, int]:
    """A tuple; or a value in parentheses, as itself."""
    items = TupleList()
    commas = 0
    while not (closing := _closing(text, end, ")")):
        item, end = _value(text, end, depth)
        items.append(item)
        after = _separator(text, end, ")")
        commas += after != end
        end = after
    return (items if commas or not items else items[0]), closing


def _dict(text: str, end: int, depth: int) -> tuple[dict[str, Any], int]:
    items: dict[str, Any] = {}
    while not (closing := _closing(text, end, "}")):
        key, end = _value(text, end, depth)
        colon, end = _mark(text, end)
        if colon != ":" or not isinstance(key, str) or key in items:
            raise UnreadableError
        items[key], end = _value(text, end, depth)
        end = _separator(text, end, "}")
    return items, closing


_CONTAINERS = {"[": _list, "(": _tuple, "{": _dict}


def _mark(text: str, start: int) -> tuple[str, int]:
    match = _MARK.match(text, start)
    if match is None:
        raise UnreadableError
    return match[1], match.end()


def _closing(text: str, start: int, mark: str) -> int:
    """Where the text goes on after `mark`, if that comes next; else 0."""
    match = _MARK.match(text, start)
    return match.end() if match is not None and match[1] == mark else 0


def _separator(text: str, start: int, closing: str) -> int:
    """After the comma, or still before the closing mark: one of them has to follow an item."""
    mark, end = _mark(text, start)
    if mark == ",":
        return end
    if mark != closing:
        raise UnreadableError
    return start
