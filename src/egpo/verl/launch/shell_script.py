"""Splits a shell script into commands and words, without running it.

It supports what training scripts use: quotes, line continuations, comments, redirections, and variables and arrays that
the script itself sets.
"""

import re
from dataclasses import dataclass

from egpo.errors import InputError

_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
_VARIABLE = re.compile(r"([A-Za-z_]\w*)(\[@\]|\[\*\])?(?:(:?[-=])(.*))?", re.DOTALL)
_REDIRECTION = re.compile(r"\d*(?:>>|>&|<&|>|<)\s*")
_PLAIN = re.compile(r"""[^\s'"\\$`;&|()<>]+""")
_PLAIN_IN_QUOTES = re.compile(r"""[^"\\$`]+""")
_DECLARATIONS = ("export", "local", "declare", "readonly", "typeset")


@dataclass(frozen=True)
class Word:
    """A shell word. `fault` is the reason why its value is not known without a shell; None if it is known."""

    text: str
    fault: str | None = None


def simple_commands(text: str, where: str, *, assigns: bool = True) -> list[list[Word]]:
    """Return the simple commands in order, with variables replaced.

    Assignments are evaluated and left out. With `assigns=False`, `NAME=value` is an ordinary word.
    """
    return _Reader(text, where, assigns).commands()


class _Reader:
    def __init__(self, text: str, where: str, assigns: bool = True) -> None:
        self.text, self.where, self.assigns, self.at = text, where, assigns, 0
        # Paths in recipes may start with `~`, so $HOME need not be expanded.
        self.variables: dict[str, list[Word]] = {"HOME": [Word("~")]}

    def commands(self) -> list[list[Word]]:
        found: list[list[Word]] = []
        current: list[Word] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in "\n;&|":
                self.at += 1
                if current:
                    found.append(current)
                current = []
            elif self.skipped(char) or self.assigned(current):
                continue
            else:
                current += self.word()
        return [*found, current] if current else found

    def skipped(self, char: str) -> bool:
        """Skip blanks, continuations, comments, parentheses and redirections. Return whether there was one."""
        redirection = _REDIRECTION.match(self.text, self.at)
        if char == "#":
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        elif self.text.startswith("\\\n", self.at):
            self.at += 2
        elif char.isspace() or char in "()":
            self.at += 1
        elif redirection:
            self.at = redirection.end()
            if self.at < len(self.text) and self.text[self.at] not in "\n;&|":
                self.word()
        else:
            return False
        return True

    def assigned(self, current: list[Word]) -> bool:
        """Evaluate an assignment if there is one at this position. Return whether there was one.

        An assignment is `NAME=value` or `NAME=( ... )`, at the start of a command or after `export`.
        """
        if not self.assigns or (current and current[0].text not in _DECLARATIONS):
            return False
        start = _ASSIGNED.match(self.text, self.at)
        if start is None or "." in start[0]:
            return False
        name, self.at = start[0][:-1], start.end()
        if self.text.startswith("(", self.at):
            self.at += 1
            self.variables[name] = self.array()
        else:
            ended = self.at >= len(self.text) or self.text[self.at] in " \t\n;&|"
            self.variables[name] = [Word("")] if ended else self.word(split=False)
        return True

    def array(self) -> list[Word]:
        found: list[Word] = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            if self.text[self.at] in "\n;&|":
                self.at += 1
            elif not self.skipped(self.text[self.at]):
                found += self.word()
        self.at += 1
        return found

    def word(self, split: bool = True) -> list[Word]:
        """Read one word; several words if it contains an unquoted variable with several."""
        fields: list[Word] = [Word("")]
        started = self.at
        while self.at < len(self.text) and self.text[self.at] not in " \t\n;&|()<>":
            char = self.text[self.at]
            if char == "'":
                end = self.closing("'")
                fields = _joined(fields, [Word(self.text[self.at + 1 : end])])
                self.at = end + 1
            elif char == '"':
                fields = _joined(fields, self.double_quoted())
            elif char == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                fields = _joined(fields, [Word("" if following == "\n" else following)])
                self.at += 2
            elif char in "$`":
                fields = _joined(fields, self.expansion(split=split))
            else:
                fields = _joined(fields, [Word(self.run(_PLAIN))])
        if self.at == started:
            self.at += 1  # a parenthesis or a redirection inside an assignment
        return fields

    def double_quoted(self) -> list[Word]:
        fields, self.at = [Word("")], self.at + 1
        opened = self.at
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return fields
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in ("$", "`", '"', "\\", "\n"):
                following = self.text[self.at + 1]
                fields = _joined(fields, [Word("" if following == "\n" else following)])
                self.at += 2
            elif char in "$`":
                fields = _joined(fields, self.expansion(split=False))
            else:
                fields = _joined(fields, [Word(self.run(_PLAIN_IN_QUOTES))])
        raise self.unclosed(opened)

    def run(self, plain: re.Pattern[str]) -> str:
        """Read the characters up to the next special character, but at least one."""
        found = plain.match(self.text, self.at)
        start, self.at = self.at, found.end() if found else self.at + 1
        return self.text[start : self.at]

    def expansion(self, split: bool) -> list[Word]:
        """Expand `$NAME`, `${NAME:-value}` or `${NAME[@]}`. What needs a real shell becomes a word with a fault."""
        start = self.at
        if self.text[self.at] == "`":
            self.at = self.closing("`") + 1
            return [Word(self.text[start : self.at], "a command, whose output is known only to a shell")]
        if self.text.startswith("$(", self.at):
            self.at = self.balanced("(", ")")
            return [Word(self.text[start : self.at], "a command or a sum that only a shell computes")]
        if self.text.startswith("${", self.at):
            self.at = self.balanced("{", "}")
            found = _VARIABLE.fullmatch(self.text[start + 2 : self.at - 1])
            if found is None:
                return [Word(self.text[start : self.at], "an expansion that only a shell computes")]
            return self.value(found[1], found[4], split=split and found[2] is None, whole=self.text[start : self.at])
        name = _NAME.match(self.text, self.at + 1)
        if name is None:
            special = self.text[self.at + 1 : self.at + 2]
            self.at += 2 if special and special in "@*#?$!0123456789-" else 1
            fault = "an argument of the script" if self.at == start + 2 else None
            return [Word(self.text[start : self.at], fault)]
        self.at = name.end()
        return self.value(name[0], None, split=split, whole=self.text[start : self.at])

    def value(self, name: str, default: str | None, *, split: bool, whole: str) -> list[Word]:
        held = self.variables.get(name)
        if held is None and default is not None:
            inner = _Reader(default, self.where)
            inner.variables = self.variables
            held = inner.word(split=False) if default else [Word("")]
        if held is None:
            return [Word(whole, f"the shell variable {name} is not set in the file")]
        if split and len(held) == 1 and held[0].fault is None and held[0].text.split():
            return [Word(part) for part in held[0].text.split()]
        return held

    def closing(self, quote: str) -> int:
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            raise self.unclosed(self.at)
        return end

    def balanced(self, opening: str, closing: str) -> int:
        depth = 0
        for at in range(self.at + 1, len(self.text)):
            depth += (self.text[at] == opening) - (self.text[at] == closing)
            if depth == 0:
                return at + 1
        raise self.unclosed(self.at)

    def unclosed(self, at: int) -> InputError:
        line = self.text.count("\n", 0, at) + 1
        return InputError(
            "a quote or a bracket is not closed", where=f"{self.where}:{line}", fix="check quotes and brackets"
        )


def _joined(fields: list[Word], more: list[Word]) -> list[Word]:
    """Concatenate two lists of fields: the last of `fields` and the first of `more` become one."""
    first, *rest = more or [Word("")]
    last = fields[-1]
    return [*fields[:-1], Word(last.text + first.text, last.fault or first.fault), *rest]
