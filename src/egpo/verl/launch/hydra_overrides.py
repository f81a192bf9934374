"""Write and read `key=value` overrides of Hydra's command line. `parse_value(format_value(x))` equals `x`."""

import re
from collections.abc import Mapping
from typing import Any

from egpo.verl.launch.schema.known import schema

_UNQUOTED = re.compile(r"[A-Za-z_/][\w./:-]*", re.ASCII)
_CONSTANTS = {"null": None, "true": True, "false": False}
_RESERVED = {*_CONSTANTS, "inf", "nan"}
_NUMBER = re.compile(r"[-+]?(\d[\d_]*)?\.?\d[\d_]*([eE][-+]?\d+)?|[-+]?\d+\.")


def format_override(key: str, value: Any) -> str:
    """Return `key=value`, with a `+` before it if verl's files do not declare the key."""
    plus = "" if schema().declares(key) or key.startswith("hydra.") else "+"
    return f"{plus}{key}={format_value(value)}"


def format_value(value: Any) -> str:
    """Return the value as Hydra's command line reads it back.

    >>> format_value(["<think>", 3, None, True, 1e-06, "vllm"])
    "['<think>',3,null,true,1e-06,vllm]"
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{format_value(str(key))}:{format_value(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(format_value, value))}]"
    if isinstance(value, str):
        return value if _UNQUOTED.fullmatch(value) and value.lower() not in _RESERVED else _quoted(value)
    return repr(value)


def _quoted(text: str) -> str:
    """Return the text in single quotes. Backslashes are literal, except before a quote, where they are doubled.

    A reference `${name}` is kept: Hydra replaces it, as in verl's own files.
    """
    escaped = re.sub(r"(\\*)'", lambda found: found[1] * 2 + "\\'", text)
    return "'" + re.sub(r"(\\+)$", lambda found: found[1] * 2, escaped) + "'"


def parse_value(text: str) -> Any:
    """Return the value that Hydra would read from this text. ValueError with the reason if Hydra reads no plain value.

    >>> parse_value("['<think>',3,null,true,1e-06,vllm]")
    ['<think>', 3, None, True, 1e-06, 'vllm']
    """
    if re.match(r"\s*\w+\(", text):
        raise ValueError("a Hydra function")
    reader = _ValueReader(text)
    value = reader.value("," if text.strip() else "")
    reader.skip_blanks()
    if reader.at < len(text):
        raise ValueError("a sweep over several values" if text[reader.at] == "," else "not a Hydra value")
    return value


class _ValueReader:
    """A recursive-descent parser of Hydra's values: lists, dictionaries, quoted text, unquoted text."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0

    def skip_blanks(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def value(self, ends: str) -> Any:
        self.skip_blanks()
        first = self.text[self.at : self.at + 1]
        if first and first in "'\"":
            return self.quoted(first)
        if first and first in "[{":
            self.depth += 1
            if self.depth > 50:
                raise ValueError("nested too deeply")
            return self.items() if first == "[" else self.pairs()
        return self.plain(ends)

    def items(self) -> list[Any]:
        found: list[Any] = []
        self.at += 1
        while not self.closes("]"):
            found.append(self.value(",]"))
            self.separator("]")
        return found

    def pairs(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self.at += 1
        while not self.closes("}"):
            key = self.value(":")
            self.skip_blanks()
            if self.text[self.at : self.at + 1] != ":":
                raise ValueError("not a Hydra value")
            self.at += 1
            found[str(key)] = self.value(",}")
            self.separator("}")
        return found

    def closes(self, end: str) -> bool:
        self.skip_blanks()
        if self.text[self.at : self.at + 1] == end:
            self.at += 1
            self.depth -= 1
            return True
        if self.at >= len(self.text):
            raise ValueError(f"`{end}` is missing")
        return False

    def separator(self, end: str) -> None:
        self.skip_blanks()
        if self.text[self.at : self.at + 1] == ",":
            self.at += 1
        elif self.text[self.at : self.at + 1] != end:
            raise ValueError(f"`{end}` is missing")

    def quoted(self, quote: str) -> str:
        """Read quoted text. Backslashes are literal, except before a quote, where a pair of them means one."""
        self.at += 1
        found = ""
        while self.at < len(self.text):
            run = re.compile(r"\\*").match(self.text, self.at)
            assert run is not None
            slashes, self.at = len(run[0]), run.end()
            following = self.text[self.at : self.at + 1]
            if following != quote:
                found += run[0] + following
            else:
                found += "\\" * (slashes // 2) + (quote if slashes % 2 else "")
                if slashes % 2 == 0:
                    self.at += 1
                    return found
            self.at += 1
        raise ValueError("a quote is not closed")

    def plain(self, ends: str) -> Any:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in ends:
            braces = re.compile(r"\$\{[^{}]*\}").match(self.text, self.at)
            self.at = braces.end() if braces else self.at + (2 if self.text[self.at] == "\\" else 1)
        text = re.sub(r"\\(.)", r"\1", self.text[start : self.at].strip())
        if text.lower() in _CONSTANTS:
            return _CONSTANTS[text.lower()]
        if text.lower() in ("inf", "-inf", "nan") or _NUMBER.fullmatch(text):
            return _number(text)
        return text


def _number(text: str) -> int | float | str:
    digits = text.replace("_", "")
    if re.fullmatch(r"[-+]?\d{1,400}", digits):
        return int(digits)
    try:
        return float(digits)
    except ValueError:
        return text
