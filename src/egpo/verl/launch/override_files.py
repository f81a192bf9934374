"""Reads the settings that a file passes to verl: a script, a file of overrides, or a YAML configuration.

    file -> shell words (quotes, continuations, variables) -> overrides (+key=, ++key=, ~key) -> plain values

A script runs `python -m verl.trainer.main_ppo key=value ...`. A setting that cannot be read (a command
substitution, a sweep, an interpolation that only Hydra resolves) is listed with the reason; no value is guessed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from egpo.config.yaml_text import parse_scalar, parse_yaml
from egpo.errors import ConfigError, InputError, shortened
from egpo.files import path_fault
from egpo.verl.launch.hydra_overrides import parse_value
from egpo.verl.launch.schema.known import leaves, schema
from egpo.verl.launch.shell_script import simple_commands

MOST_BYTES = 200_000
_MAIN = re.compile(r"(?:^|[./])main_ppo(?:\.py)?$")
_OVERRIDE = re.compile(r"(\+\+|\+|~)?([A-Za-z_][\w.-]*)(?:=(.*))?", re.DOTALL)
_USUAL_DEFAULTS = ("ppo_trainer", "_self_")


@dataclass(frozen=True)
class Unread:
    """A setting as it is written in the file, and the reason why it was not imported."""

    text: str
    reason: str

    def __str__(self) -> str:
        return f"{shortened(self.text, 100).strip(chr(39))}: {self.reason}"


@dataclass
class VerlSettings:
    """Values by verl's dotted keys, and the settings that could not be read."""

    values: dict[str, Any] = field(default_factory=dict)
    unread: list[Unread] = field(default_factory=list)


def read_verl_file(path: Path) -> VerlSettings:
    """Return the settings of a script, a file of overrides or a YAML file. InputError if it is none of them."""
    text = _text(path)
    try:
        return _read(path, text)
    except RecursionError as error:
        raise InputError("values are nested too deeply", where=str(path), fix="give plain values") from error


def _read(path: Path, text: str) -> VerlSettings:
    settings = VerlSettings()
    tree = None if "main_ppo" in text and path.suffix not in (".yaml", ".yml") else _mapping(path, text)
    if tree is not None:
        _read_tree(tree, settings)
    else:
        _read_commands(text, str(path), settings)
    if not settings.values and not settings.unread:
        fix = "give a script with `python -m verl.trainer.main_ppo key=value ...`, a file of overrides, or verl's YAML"
        raise InputError("the file contains no settings of verl", where=str(path), fix=fix)
    return settings


def _text(path: Path) -> str:
    if fault := path_fault(str(path)):
        raise InputError("the path is not valid", where=shortened(str(path)), fix=f"give {fault}")
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise InputError("the file does not exist", where=str(path), fix="check the path") from error
    except OSError as error:
        raise InputError(
            f"the file cannot be read: {error.strerror}", where=str(path), fix="give a text file"
        ) from error
    if len(content) > MOST_BYTES or b"\0" in content:
        what = "the file is binary or too large for a verl configuration"
        raise InputError(what, where=str(path), fix="give a text file below 200 kB")
    try:
        return content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InputError("the file is not UTF-8 text", where=str(path), fix="give a text file") from error


def _mapping(path: Path, text: str) -> Mapping[str, Any] | None:
    """Return the file as a YAML mapping; None if it is not one. A file named `.yaml` or `.yml` must be one."""
    try:
        value = parse_yaml(text, str(path)).value
    except ConfigError:
        if path.suffix in (".yaml", ".yml"):
            raise
        return None
    if path.suffix in (".yaml", ".yml") and not isinstance(value, Mapping):
        what = "the file has no keys and values"
        raise InputError(what, where=str(path), fix="give verl's YAML configuration")
    return value if isinstance(value, Mapping) else None


def _read_tree(tree: Mapping[str, Any], settings: VerlSettings) -> None:
    for name in _list(tree.get("defaults")):
        if name not in _USUAL_DEFAULTS:
            reason = "a Hydra config group, whose values are not in this file: compose it and import the result"
            settings.unread.append(Unread(f"defaults: {name}", reason))
    for key, value in leaves({name: inner for name, inner in tree.items() if name != "defaults"}):
        if value == "???":
            settings.unread.append(Unread(f"{key}: ???", "must be set on the command line"))
        else:
            settings.values[key] = value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _read_commands(text: str, where: str, settings: VerlSettings) -> None:
    """Read the arguments of the first command that runs verl; without one, every word must be an override."""
    found = simple_commands(text, where)
    for command in found:
        mains = [i for i, word in enumerate(command) if _MAIN.search(word.text)]
        if mains:
            for word in command[mains[0] + 1 :]:
                _read_override(word.text, word.fault, settings)
            return
    flat = [word for command in simple_commands(text, where, assigns=False) for word in command]
    if not any("=" in word.text for word in flat):
        return
    for word in flat:
        if "=" not in word.text and not word.text.startswith("~"):
            what = f"`{word.text:.40}` is not an override, and no command runs verl.trainer.main_ppo"
            raise InputError(what, where=where, fix="give one `key=value` per line, or the whole command")
        _read_override(word.text, word.fault, settings)


def _read_override(text: str, fault: str | None, settings: VerlSettings) -> None:
    """Add one argument of the command to `settings`: its value, or the reason why it cannot be read."""
    if text == "--config-name=ppo_trainer":
        return  # verl's own default
    parsed = _OVERRIDE.fullmatch(text)
    if fault := fault or _override_fault(text, parsed):
        settings.unread.append(Unread(text, fault))
        if parsed and parsed[1] == "~":
            settings.values.pop(parsed[2], None)
        return
    assert parsed is not None
    try:
        value = parse_value(parsed[3])
    except ValueError as error:
        settings.unread.append(Unread(text, str(error)))
        return
    if isinstance(value, dict) and value:
        settings.values |= {f"{parsed[2]}.{key}": inner for key, inner in leaves(value)}
    else:
        settings.values[parsed[2]] = value


def _override_fault(text: str, parsed: re.Match[str] | None) -> str | None:
    """Return why the argument is not `key=value` with an optional `+` or `++`; None if it is."""
    if text.startswith("-"):
        return "an option of Hydra" + (": import that file as well" if text.startswith("--config") else "")
    if parsed is None or (parsed[3] is None and parsed[1] != "~"):
        return "not a setting: a Hydra config group, or a typing error"
    return "a recipe cannot remove a key of verl's configuration" if parsed[1] == "~" else None


_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def resolve_references(settings: VerlSettings) -> None:
    """Replace references such as `${data.max_prompt_length}` by the value in the file, or by verl's default.

    A setting with a reference that only Hydra can resolve is moved to `unread`.
    """
    for key in list(settings.values):
        try:
            settings.values[key] = _resolved(settings.values[key], settings.values, ())
        except ValueError as error:
            settings.unread.append(Unread(f"{key}={settings.values.pop(key)}", str(error)))


def _resolved(value: Any, values: Mapping[str, Any], chain: tuple[str, ...]) -> Any:
    if isinstance(value, list):
        return [_resolved(item, values, chain) for item in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    whole = _REFERENCE.fullmatch(value)
    if whole:
        return _referred(whole[1], values, chain)
    text = _REFERENCE.sub(lambda found: str(_referred(found[1], values, chain)), value)
    if "${" in text:
        raise ValueError("an interpolation that only Hydra resolves")
    return parse_scalar(text) if text != value else text


def _referred(name: str, values: Mapping[str, Any], chain: tuple[str, ...]) -> Any:
    """Return the value of the key `name`. `chain` are the keys that refer to it: if it is one of them, ValueError."""
    if name in chain:
        raise ValueError("an interpolation that refers to itself")
    if name not in values and name not in schema().defaults:
        raise ValueError(f"an interpolation of `{name}`, which nothing sets")
    return _resolved(values.get(name, schema().defaults.get(name)), values, (*chain, name))
