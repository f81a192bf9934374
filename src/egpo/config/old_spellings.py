"""Spellings of the earlier systems that are still understood, and the present ones.

`algorithm.egpo_lambda: 0.4` in a recipe, as an override, or on verl's command line is `algorithm.egpo.lam: 0.4`; a
notice on stderr says so once. To add a spelling, add a row to one of the two tables: recipes and the plug-in for verl
both read them. All of it stands under `algorithm`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from egpo.config.yaml_text import Document
from egpo.errors import ConfigError, Fault, notify_once
from egpo.sections import KeyPath

SECTION = "algorithm"


@dataclass(frozen=True)
class OldKey:
    """Dotted, below `algorithm`: the old key, the present one in a recipe, and the one that the plug-in reads in verl's
    configuration, where the settings of both estimators stand under `egpo`."""

    old: str
    recipe: str
    verl: str


OLD_KEYS = (
    OldKey("egpo_lambda", recipe="egpo.lam", verl="egpo.lam"),
    OldKey("egpo_alpha", recipe="egpo.alpha", verl="egpo.alpha"),
    OldKey("egpo.entropy_epsilon", recipe="egpo_calibrated.eps", verl="egpo.eps"),
    OldKey("egpo.lambda_min", recipe="egpo_calibrated.lambda_min", verl="egpo.lambda_min"),
    OldKey("egpo.lambda_max", recipe="egpo_calibrated.lambda_max", verl="egpo.lambda_max"),
    OldKey("egpo_calibrated.entropy_epsilon", recipe="egpo_calibrated.eps", verl="egpo.eps"),
)
"""The last four are the calibrated estimator's."""

OLD_VALUES = {"entropy_mode": {"joint": "response"}}
"""By the last part of the key."""

_IN_RECIPES: dict[KeyPath, KeyPath] = {
    (SECTION, *row.old.split(".")): (SECTION, *row.recipe.split(".")) for row in OLD_KEYS
}


def present_value(key: str, value: Any) -> Any:
    """The value in today's words, with a notice where it was another; `key` is dotted."""
    new = OLD_VALUES.get(key.rpartition(".")[2], {}).get(value) if isinstance(value, str) else None
    if new is None:
        return value
    notify_once(f"{key}={value} -> {key}={new}")
    return new


def present_override(path: KeyPath, value: Any) -> tuple[KeyPath, Any]:
    """An override in today's words: of one key, or of a section with old keys in it."""
    if isinstance(value, dict) and path[:1] == (SECTION,):
        nested: Any = value
        for part in reversed(path):
            nested = {part: nested}
        found = present_document(Document(nested, {}), f"override `{'.'.join(path)}`").value
        for part in path:
            found = found.get(part, {})
        return path, found
    new = _IN_RECIPES.get(path, path)
    if new != path:
        _notify(path, new)
    return new, present_value(".".join(new), value) if new[:1] == (SECTION,) else value


def present_document(document: Document, where: str) -> Document:
    """A file's values in today's words; each keeps its line. Two spellings of one setting that differ: ConfigError."""
    if not isinstance(document.value, dict) or not isinstance(document.value.get(SECTION), dict):
        return document
    value, line_of = _copied(document.value), dict(document.line_of)
    for old, new in _IN_RECIPES.items():
        parent = _section(value, old[:-1])
        if parent is None or old[-1] not in parent:
            continue
        target = _section(value, new[:-1], make=True)
        if target is None:
            continue  # a plain value stands where the section belongs: the schema says so
        given = parent.pop(old[-1])
        place = f"{where}:{line_of[old]}" if old in line_of else where
        if new[-1] in target and target[new[-1]] != given:
            names = f"`{'.'.join(old)}` is {given} and `{'.'.join(new)}` is {target[new[-1]]}"
            raise ConfigError([Fault(f"{names}, and they are one setting", place, f"keep {'.'.join(new)}")])
        target[new[-1]] = given
        if old in line_of:
            line_of[new] = line_of.pop(old)
        _notify(old, new)
    _replace_values(value[SECTION], SECTION)
    return Document(value, line_of)


def _replace_values(section: dict[str, Any], name: str) -> None:
    for key, value in section.items():
        if isinstance(value, dict):
            _replace_values(value, f"{name}.{key}")
        else:
            section[key] = present_value(f"{name}.{key}", value)


def _section(value: dict[str, Any], path: KeyPath, make: bool = False) -> dict[str, Any] | None:
    """The section at `path`; none where there is none, or where a plain value stands."""
    for part in path:
        found = value.setdefault(part, {}) if make else value.get(part)
        if not isinstance(found, dict):
            return None
        value = found
    return value


def _copied(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(inner) if isinstance(inner, dict) else inner for key, inner in value.items()}


def _notify(old: KeyPath, new: KeyPath) -> None:
    notify_once(f"{'.'.join(old)} -> {'.'.join(new)}")
