"""Read what a file tells verl: a shell script with `python -m verl.trainer.main_ppo key=value ...`, a file of
overrides, or a YAML configuration.

    file -> words (shell: quotes, continuations, variables) -> overrides (Hydra: +key=, ++key=, ~key) -> plain values

What cannot be read (a command substitution, a sweep, an interpolation that only Hydra resolves) is listed with the
reason, and nothing of it is guessed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from egpo.config.yaml_text import parse_scalar, parse_yaml
from egpo.errors import ConfigError, InputError, shortened
from egpo.files import path_fault
from egpo.verl.launch.schema.known import schema
from egpo.verl.launch.schema.snapshot import leaves
from egpo.verl.launch.shell_words import commands

MOST_BYTES = 200_000
_MAIN = re.compile(r"(?:^|[./])main_ppo(?:\.py)?$")
_OVERRIDE = re.compile(r"(\+\+|\+|~)?([A-Za-z_][\w.-]*)(?:=(.*))?", re.DOTALL)
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_NUMBER = re.compile(r"[-+]?(\d[\d_]*)?\.?\d[\d_]*([eE][-+]?\d+)?|[-+]?\d+\.")
_USUAL_DEFAULTS = ("ppo_trainer", "_self_")


@dataclass(frozen=True)
class Unread:
    """A setting as it stands in the file, and why it was not taken over."""

    text: str
    reason: str

    def __str__(self) -> str:
        return f"{shortened(self.text, 100).strip(chr(39))}: {self.reason}"


@dataclass
class VerlWords:
    """Values by verl's dotted keys, and what could not be read."""

    values: dict[str, Any] = field(default_factory=dict)
    unread: list[Unread] = field(default_factory=list)


def read_verl_file(path: Path) -> VerlWords:
    """InputError where the file is no configuration of verl's at all."""
    text = _text(path)
    try:
        return _read(path, text)
    except RecursionError as error:
        raise InputError("nested too deeply", where=str(path), fix="give plain values") from error


def _read(path: Path, text: str) -> VerlWords:
    words = VerlWords()
    tree = None if "main_ppo" in text and path.suffix not in (".yaml", ".yml") else _mapping(path, text)
    if tree is not None:
        _read_tree(tree, words)
    else:
        _read_commands(text, str(path), words)
    if not words.values and not words.unread:
        fix = "give a script with `python -m verl.trainer.main_ppo key=value ...`, a file of overrides, or verl's YAML"
        raise InputError("no settings of verl's", where=str(path), fix=fix)
    return words


def _text(path: Path) -> str:
    if fault := path_fault(str(path)):
        raise InputError("cannot be read", where=shortened(str(path)), fix=f"it must be {fault}")
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise InputError("no such file", where=str(path), fix="check the path") from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path), fix="give a text file") from error
    if len(content) > MOST_BYTES or b"\0" in content:
        raise InputError("not a configuration of verl's", where=str(path), fix="give a script or YAML of some pages")
    try:
        return content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InputError("cannot be read: not UTF-8", where=str(path), fix="give a text file") from error


def _mapping(path: Path, text: str) -> Mapping[str, Any] | None:
    """The file as YAML; None where it is none, unless its name says that it should be."""
    try:
        value = parse_yaml(text, str(path)).value
    except ConfigError:
        if path.suffix in (".yaml", ".yml"):
            raise
        return None
    if path.suffix in (".yaml", ".yml") and not isinstance(value, Mapping):
        raise InputError("not a section of keys and values", where=str(path), fix="give verl's YAML configuration")
    return value if isinstance(value, Mapping) else None


def _read_tree(tree: Mapping[str, Any], words: VerlWords) -> None:
    for name in _list(tree.get("defaults")):
        if name not in _USUAL_DEFAULTS:
            reason = "a config group of Hydra's, whose values are not in this file: compose it and import the result"
            words.unread.append(Unread(f"defaults: {name}", reason))
    for key, value in leaves({name: inner for name, inner in tree.items() if name != "defaults"}):
        if value == "???":
            words.unread.append(Unread(f"{key}: ???", "is to be set on the command line"))
        else:
            words.values[key] = value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _read_commands(text: str, where: str, words: VerlWords) -> None:
    """The arguments of the first verl command; without one, every word of the file has to be an override."""
    found = commands(text, where)
    for command in found:
        mains = [i for i, word in enumerate(command) if _MAIN.search(word.text)]
        if mains:
            for word in command[mains[0] + 1 :]:
                _read_override(word.text, word.fault, words)
            return
    flat = [word for command in commands(text, where, assigns=False) for word in command]
    if not any("=" in word.text for word in flat):
        return
    for word in flat:
        if "=" not in word.text and not word.text.startswith("~"):
            what = f"`{word.text:.40}` is no override, and no command runs verl.trainer.main_ppo"
            raise InputError(what, where=where, fix="give one `key=value` a line, or the whole command")
        _read_override(word.text, word.fault, words)


def _read_override(text: str, fault: str | None, words: VerlWords) -> None:
    parsed = _OVERRIDE.fullmatch(text)
    if fault is not None:
        words.unread.append(Unread(text, fault))
    elif text == "--config-name=ppo_trainer":
        pass  # verl's own default
    elif text.startswith("-"):
        reason = "an option of Hydra's" + (": import that file as well" if text.startswith("--config") else "")
        words.unread.append(Unread(text, reason))
    elif parsed is None or (parsed[3] is None and parsed[1] != "~"):
        words.unread.append(Unread(text, "not a setting: a config group of Hydra's, or a typing error"))
    elif parsed[1] == "~":
        words.values.pop(parsed[2], None)
        words.unread.append(Unread(text, "a recipe cannot remove a key of verl's configuration"))
    else:
        try:
            value = parse_value(parsed[3])
        except ValueError as error:
            words.unread.append(Unread(text, str(error)))
            return
        if isinstance(value, dict) and value:
            words.values |= {f"{parsed[2]}.{key}": inner for key, inner in leaves(value)}
        else:
            words.values[parsed[2]] = value


def parse_value(text: str) -> Any:
    """A value of Hydra's command line; ValueError with the reason where it is none.

    >>> parse_value("['<think>',3,null,true,1e-06,vllm]")
    ['<think>', 3, None, True, 1e-06, 'vllm']
    """
    if re.match(r"\s*\w+\(", text):
        raise ValueError("a function of Hydra's")
    reader = _ValueReader(text)
    value = reader.value("," if text.strip() else "")
    reader.skip_blanks()
    if reader.at < len(text):
        raise ValueError("a sweep over several values" if text[reader.at] == "," else "not a value of Hydra's")
    return value


class _ValueReader:
    """Recursive descent over Hydra's values: lists, dictionaries, quoted text, plain words."""

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
                raise ValueError("not a value of Hydra's")
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
        """Backslashes are themselves, but for those before a quote: of these every pair is one."""
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
        word = re.sub(r"\\(.)", r"\1", self.text[start : self.at].strip())
        if word.lower() in ("null", "true", "false"):
            return {"null": None, "true": True, "false": False}[word.lower()]
        if word.lower() in ("inf", "-inf", "nan") or _NUMBER.fullmatch(word):
            return _number(word)
        return word


def _number(word: str) -> int | float | str:
    digits = word.replace("_", "")
    if re.fullmatch(r"[-+]?\d{1,400}", digits):
        return int(digits)
    try:
        return float(digits)
    except ValueError:
        return word


def resolve_references(words: VerlWords) -> None:
    """`${data.max_prompt_length}` is that key's value, in the file or by verl's default. Others are left to Hydra."""
    for key in list(words.values):
        try:
            words.values[key] = _resolved(words.values[key], words.values, ())
        except ValueError as error:
            words.unread.append(Unread(f"{key}={words.values.pop(key)}", str(error)))


def _resolved(value: Any, values: Mapping[str, Any], chain: tuple[str, ...]) -> Any:
    if isinstance(value, list):
        return [_resolved(item, values, chain) for item in value]
    if not isinstance(value, str) or "${" not in value:
        return value

    def of(name: str) -> Any:
        if name in chain:
            raise ValueError("an interpolation that refers to itself")
        if name not in values and name not in schema().defaults:
            raise ValueError(f"an interpolation of `{name}`, which nothing sets")
        return _resolved(values.get(name, schema().defaults.get(name)), values, (*chain, name))

    whole = _REFERENCE.fullmatch(value)
    if whole:
        return of(whole[1])
    text = _REFERENCE.sub(lambda found: str(of(found[1])), value)
    if "${" in text:
        raise ValueError("an interpolation that only Hydra resolves")
    return parse_scalar(text) if text != value else text
