"""String literals of Python: their pattern, and the text that they stand for."""

import re
import unicodedata

from egpo.rewards.tool_calls.reasons import UnreadableError

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
