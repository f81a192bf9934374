"""The translation of config keys and values of earlier EGPO repositories to the current ones.

`algorithm.egpo_lambda: 0.4` in a recipe, as an override, or on verl's command line is read as
`algorithm.egpo.lam: 0.4`, and a notice is printed once on stderr. All old keys are below `algorithm`. To add one, add a
row to OLD_KEYS or OLD_VALUES; recipes and the verl plug-in both read these tables.
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
    """An old key with its current key in a recipe and in verl's configuration. All are dotted and relative to
    `algorithm`. In verl's configuration the settings of both EGPO estimators are below `egpo`."""

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
"""The table of old keys. The last four are settings of the estimator `egpo_calibrated`."""

OLD_VALUES = {"entropy_mode": {"joint": "response"}}
"""The table of old values: last part of the key -> {old value: current value}."""

_IN_RECIPES: dict[KeyPath, KeyPath] = {
    (SECTION, *row.old.split(".")): (SECTION, *row.recipe.split(".")) for row in OLD_KEYS
}


def current_value(key: str, value: Any) -> Any:
    """Return the current spelling of a value; print a notice if the value is an old one. `key` is its dotted key."""
    new = OLD_VALUES.get(key.rpartition(".")[2], {}).get(value) if isinstance(value, str) else None
    if new is None:
        return value
    notify_once(f"the old value {key}={value} is read as {key}={new}")
    return new


def current_override(path: KeyPath, value: Any) -> tuple[KeyPath, Any]:
    """Return the key and value of an override in their current spelling. The value may be a section with old keys."""
    if isinstance(value, dict) and path[:1] == (SECTION,):
        nested: Any = value
        for part in reversed(path):
            nested = {part: nested}
        found = current_document(Document(nested, {}), f"override `{'.'.join(path)}`").value
        for part in path:
            found = found.get(part, {})
        return path, found
    new = _IN_RECIPES.get(path, path)
    if new != path:
        _notify(path, new)
    return new, current_value(".".join(new), value) if new[:1] == (SECTION,) else value


def current_document(document: Document, where: str) -> Document:
    """Return the values of a file with current keys and values; each keeps its line number. Raise ConfigError if a
    setting is given in both spellings with different values."""
    if not isinstance(document.value, dict) or not isinstance(document.value.get(SECTION), dict):
        return document
    value, line_of = _copied(document.value), dict(document.line_of)
    for old, new in _IN_RECIPES.items():
        parent = _section(value, old[:-1])
        if parent is None or old[-1] not in parent:
            continue
        target = _section(value, new[:-1], make=True)
        if target is None:
            continue  # a plain value in place of a section: the schema reports it
        given = parent.pop(old[-1])
        place = f"{where}:{line_of[old]}" if old in line_of else where
        if new[-1] in target and target[new[-1]] != given:
            names = f"`{'.'.join(old)}` is {given} and `{'.'.join(new)}` is {target[new[-1]]}"
            what = f"{names}, but they are the same setting"
            raise ConfigError([Fault(what, place, f"keep {'.'.join(new)}")])
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
            section[key] = current_value(f"{name}.{key}", value)


def _section(value: dict[str, Any], path: KeyPath, make: bool = False) -> dict[str, Any] | None:
    """Return the section at `path`, or None if it is missing or a plain value. With `make`, create it if missing."""
    for part in path:
        found = value.setdefault(part, {}) if make else value.get(part)
        if not isinstance(found, dict):
            return None
        value = found
    return value


def _copied(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(inner) if isinstance(inner, dict) else inner for key, inner in value.items()}


def _notify(old: KeyPath, new: KeyPath) -> None:
    notify_once(f"the old key {'.'.join(old)} is read as {'.'.join(new)}")
