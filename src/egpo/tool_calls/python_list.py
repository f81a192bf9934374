"""A reader of calls in Python-list syntax, `[f(a=1), g.h(b=[1, 2])]`, as BFCL's prompt asks for. It evaluates nothing.

`ast` is not used: Python's documentation warns that `ast.parse` can crash the interpreter on deep nesting, and it
builds a tree of the whole language to find a few literals. If this reader accepts a text,
`ast.literal_eval` gives the same values (a test checks it), except that a tuple is a kind of list.
With `dataset=True` an argument may also be one of JSON's constants, and a key a number, as in some datasets; Python's
keywords are then not accepted as names.
"""

import json
import re
import unicodedata
from keyword import iskeyword
from typing import Any

from egpo.call_bounds import MAX_DEPTH
from egpo.tool_calls.calls import Call, CallsError, TupleList, checked_call, integer, real

# All quantifiers are possessive: an unterminated string fails after one scan, whatever it contains.
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
    """Return the value of a Python string literal. An unknown escape keeps its backslash, as in Python."""
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
        raise CallsError from error
    raise CallsError


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
_NOT_SOURCE = re.compile("[\0\ud800-\udfff]")
_JSON_CONSTANT = re.compile(r"\s*+(true|false|null)(?!\w)")
_JSON_CONSTANTS = {"true": True, "false": False, "null": None}
_CONSTANTS = {"True": True, "False": False, "None": None}


def starts_like_calls(text: str) -> bool:
    """Return whether `text` begins like a list of calls: `[name(`."""
    return _START.match(text) is not None


def is_bare_calls(text: str) -> bool:
    """Return whether `text` consists of calls without a list around them, separated by spaces, commas or semicolons."""
    rest, end = text.rstrip(_BETWEEN), 0
    try:
        while end < len(rest):
            _, end = _call(rest, end, dataset=False)
            while end < len(rest) and rest[end] in _BETWEEN:
                end += 1
    except CallsError:
        return False
    return end > 0


def starts_like_a_call(text: str) -> bool:
    """Return whether `text` begins with a call that names an argument: `name(argument=`."""
    head = _HEAD.match(text)
    return head is not None and _KEYWORD.match(text, head.end()) is not None


def listed_calls(text: str, *, dataset: bool = False) -> tuple[Call, ...]:
    """Return the calls of a text that is one list of calls and nothing else."""
    if dataset and not _is_source(text):
        raise CallsError
    calls = []
    mark, end = _mark(text, 0)
    if mark != "[":
        raise CallsError
    while not (closing := _closing(text, end, "]")):
        call, end = _call(text, end, dataset)
        calls.append(call)
        end = _separator(text, end, "]")
    if text[closing:].strip():
        raise CallsError("text_after_list")
    return tuple(calls)


def _is_source(text: str) -> bool:
    """Return whether Python would accept the text as source code: it has no NUL and no lone surrogate."""
    return _NOT_SOURCE.search(text) is None


def _call(text: str, start: int, dataset: bool) -> tuple[Call, int]:
    """Return one call and where it ends. Positional arguments are named arg_0, arg_1, as in converted conversations."""
    head = _HEAD.match(text, start)
    if head is None:
        raise CallsError
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
            raise CallsError
        if name in arguments or (dataset and iskeyword(name)):
            raise CallsError
        arguments[name], end = _argument(text, end, dataset)
        end = _separator(text, end, ")")
    if not dataset:
        return Call(head[1], arguments), closing
    if any(map(iskeyword, parts := head[1].split("."))) or len(parts) > MAX_DEPTH:
        raise CallsError
    return checked_call(head[1], arguments), closing


def _argument(text: str, start: int, dataset: bool) -> tuple[Any, int]:
    constant = _JSON_CONSTANT.match(text, start) if dataset else None
    if constant is not None:
        return _JSON_CONSTANTS[constant[1]], constant.end()
    return _value(text, start, 1, dataset)


def _value(text: str, start: int, depth: int, dataset: bool) -> tuple[Any, int]:
    match = _VALUE.match(text, start)
    if match is None:
        raise CallsError
    kind, end = match.lastgroup, match.end()
    if kind == "string":
        return _joined_strings(text, match["string"], end)
    if kind == "constant":
        return _CONSTANTS[match["constant"]], end
    if kind == "opening":
        if depth >= MAX_DEPTH:
            raise CallsError("over_limit")
        return _CONTAINERS[match["opening"]](text, end, depth + 1, dataset)
    return _number(match), end


def _number(match: re.Match[str]) -> int | float:
    try:
        value = real(match["real"]) if match["real"] else integer(match["integer"], 0)
    except CallsError:
        raise
    except ValueError as error:
        raise CallsError from error
    return -value if match["sign"] == "-" else value


def _joined_strings(text: str, first: str, end: int) -> tuple[str, int]:
    """Join adjacent string literals into one string, as Python does."""
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


def _list(text: str, end: int, depth: int, dataset: bool) -> tuple[list[Any], int]:
    items = []
    while not (closing := _closing(text, end, "]")):
        item, end = _value(text, end, depth, dataset)
        items.append(item)
        end = _separator(text, end, "]")
    return items, closing


def _tuple(text: str, end: int, depth: int, dataset: bool) -> tuple[Any, int]:
    """Read a tuple, or a single value in parentheses, which is not a tuple."""
    items = TupleList()
    commas = 0
    while not (closing := _closing(text, end, ")")):
        item, end = _value(text, end, depth, dataset)
        items.append(item)
        after = _separator(text, end, ")")
        commas += after != end
        end = after
    return (items if commas or not items else items[0]), closing


def _dict(text: str, end: int, depth: int, dataset: bool) -> tuple[dict[str, Any], int]:
    items: dict[str, Any] = {}
    while not (closing := _closing(text, end, "}")):
        key, end = _value(text, end, depth, dataset)
        colon, end = _mark(text, end)
        if dataset and not isinstance(key, str):
            key = _key_text(key)
        if colon != ":" or not isinstance(key, str) or key in items:
            raise CallsError
        items[key], end = _value(text, end, depth, dataset)
        end = _separator(text, end, "}")
    return items, closing


def _key_text(key: Any) -> str:
    """Return the text of a key that is a number or a constant, as in JSON; CallsError on any other value."""
    if not isinstance(key, int | float | None):
        raise CallsError
    return str(key) if type(key) is int else json.dumps(key)


_CONTAINERS = {"[": _list, "(": _tuple, "{": _dict}


def _mark(text: str, start: int) -> tuple[str, int]:
    match = _MARK.match(text, start)
    if match is None:
        raise CallsError
    return match[1], match.end()


def _closing(text: str, start: int, mark: str) -> int:
    """Return the position after `mark` if it comes next; else 0."""
    match = _MARK.match(text, start)
    return match.end() if match is not None and match[1] == mark else 0


def _separator(text: str, start: int, closing: str) -> int:
    """Return the position after a comma, or before the closing mark: one of them has to follow an item."""
    mark, end = _mark(text, start)
    if mark == ",":
        return end
    if mark != closing:
        raise CallsError
    return start
