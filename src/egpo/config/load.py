"""The loader of recipes: reads the files, applies overrides (`update.lr=2e-6`) and this machine's defaults, checks all.

`load_config` returns the checked config, `config_to_yaml` writes it back, `config_schema` describes it for editors, and
`settings_with_origins` tells which file and line, or which override, set each value.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, TypeVar, overload

from pydantic import ValidationError

from egpo.config.includes import INCLUDE, Layers, read_layers
from egpo.config.machine import machine_file, this_machine
from egpo.config.old_spellings import OTHER_TOOLS, current_override
from egpo.config.schema import Config, SftConfig
from egpo.config.yaml_text import dump_yaml, parse_yaml
from egpo.errors import ConfigError, Fault
from egpo.recipes import recipe_path
from egpo.sections import KeyPath, PlaceOf, Section, faults_of

Recipe = str | FilePath | Mapping[str, Any] | None
"""The name of a recipe of the package, a YAML file, values by section as a YAML file would hold them, or None for the
defaults."""


@dataclass(frozen=True)
class Values:
    """The unchecked values of a recipe, the place where each was set, and the faults of overrides that failed."""

    value: dict[str, Any]
    place_of: PlaceOf
    faults: list[Fault]

    @property
    def is_sft(self) -> bool:
        return "data" in self.value and "task" not in self.value

    def origin_of(self, key: KeyPath) -> str:
        """Return the override or the `file:line` that set this key, or `default`."""
        overrides = self.place_of.override_of
        setters = [text for path, text in overrides.items() if key[: len(path)] == path]
        return f"override `{setters[-1]}`" if setters else self.place_of.set_at.get(key, "default")


def read_values(recipe: Recipe, overrides: Iterable[str]) -> Values:
    """Read a recipe and its includes, apply the overrides, and add this machine's defaults, without checking values."""
    if recipe is None or isinstance(recipe, Mapping):
        where, layers = "defaults" if recipe is None else "settings", Layers(deepcopy(dict(recipe or {})), {})
    else:
        where, layers = str(recipe), read_layers(recipe_path(recipe))
    applied, faults = apply_overrides(layers.value, [overrides] if isinstance(overrides, str) else list(overrides))
    _fill_from_machine(layers)
    return Values(layers.value, PlaceOf(where, layers.set_at, applied), faults)


def _fill_from_machine(layers: Layers) -> None:
    """Set the numbers of GPUs and nodes from the machine file, if the recipe uses verl and does not set them."""
    # The machine file is read even if it is not needed, so that its errors are reported now.
    machine, verl = this_machine(), layers.value.get("verl") or {}
    if layers.value.get("engine") == "verl" and isinstance(verl, dict) and verl.get("device") != "cpu":
        known = {"gpus": machine.gpus, "nodes": machine.nodes}
        filled = {key: value for key, value in known.items() if value is not None and verl.get(key) is None}
        if filled:
            layers.value["verl"] = verl | filled
            layers.set_at.update({("verl", key): str(machine_file()) for key in filled})


@dataclass(frozen=True)
class _Override:
    text: str
    path: KeyPath
    value: Any


def apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> tuple[dict[KeyPath, str], list[Fault]]:
    """Write the overrides into `values`. Return the override that set each key, and the faults of the overrides that
    could not be applied."""
    applied: dict[KeyPath, str] = {}
    faults: list[Fault] = []
    for override in _parsed(overrides, faults):
        section = values
        for depth, part in enumerate(override.path[:-1]):
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                name = ".".join(override.path[: depth + 1])
                fix = f"set `{name}` itself: it is a single value without keys"
                faults.append(Fault(f"`{name}` is not a section", f"override `{override.text}`", fix))
                break
        else:
            section[override.path[-1]] = override.value
            for path in [path for path in applied if path[: len(override.path)] == override.path]:
                del applied[path]
            applied[override.path] = override.text
    return applied, faults


def _parsed(overrides: Sequence[str], faults: list[Fault]) -> Iterator[_Override]:
    for text in overrides:
        key, equals, value = text.partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            fix = "write section.key=value, as in update.lr=2e-6"
            if text.startswith("-"):
                fix = f"write {text.lstrip('-')}=VALUE, without dashes"
            faults.append(Fault("this is not an override", f"`{text}`", fix))
            continue
        if path == (INCLUDE,):
            fix = "write `include` into the recipe; `egpo new` makes a recipe"
            faults.append(Fault("`include` cannot be an override", f"override `{text}`", fix))
            continue
        try:
            # A shell passes `key=""` as `key=`: that is the empty string, as in Hydra. `key=null` is null.
            fix = "put a text with `:`, `,` or other signs of YAML between quotes: key='\"...\"'"
            parsed = parse_yaml(value, f"override `{text}`", fix).value if value.strip() else ""
            yield _Override(text, *current_override(path, parsed))
        except ConfigError as error:
            faults.extend(error.faults)


Root = TypeVar("Root", bound=Section)
_INCLUDE_SCHEMA = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    "description": "Recipes, or parts of recipes, that this file is merged over. Paths are relative to this file.",
}


@overload
def load_config(recipe: Recipe = None, overrides: Iterable[str] = ()) -> Config: ...
@overload
def load_config(recipe: Recipe, overrides: Iterable[str], root: type[Root]) -> Root: ...
def load_config(recipe: Recipe = None, overrides: Iterable[str] = (), root: type[Section] = Config) -> Section:
    """Read a recipe, apply the overrides, and check the result. All faults are reported in one ConfigError, each with
    its file, line and section.

    >>> load_config(overrides=["model.path=egpo-tiny", "task.name=countdown", "update.lr=2e-6"]).update.lr
    2e-06
    """
    return _checked(read_values(recipe, overrides), root)


def load_recipe(recipe: Recipe = None, overrides: Iterable[str] = ()) -> Config | SftConfig:
    """Load and check a recipe of either kind. A recipe with `data` and without `task` is for `egpo sft`."""
    return check_values(read_values(recipe, overrides))


def check_values(values: Values) -> Config | SftConfig:
    """Check the values of a recipe of either kind, or raise a ConfigError with all faults."""
    return _checked(values, SftConfig) if values.is_sft else _checked(values, Config)


def config_to_yaml(config: Section) -> str:
    """Return a config as YAML: every setting, in the order of the schema. Loading the text gives the same config."""
    return dump_yaml(config.model_dump(mode="json"))


def config_schema(root: type[Section] = Config) -> dict[str, Any]:
    """Return the JSON schema of recipes, for editors (`# yaml-language-server: $schema=egpo.schema.json`)."""
    title = "egpo recipe" if root is Config else "egpo sft recipe"
    described = root.model_json_schema()
    # An included file may contain the required keys.
    described |= {"title": title, "properties": {INCLUDE: _INCLUDE_SCHEMA, **described["properties"]}}
    described["anyOf"] = [{"required": described.pop("required")}, {"required": [INCLUDE]}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | described


def _checked(values: Values, root: type[Root]) -> Root:
    try:
        config = root.model_validate(values.value)
    except ValidationError as error:
        raise ConfigError(values.faults + faults_of(error, root, values.place_of, OTHER_TOOLS)) from error
    if values.faults:
        raise ConfigError(values.faults)
    return config


@dataclass(frozen=True)
class Setting:
    """A setting: its dotted key, its value, and the `file:line` or the override that set it (`default` if none did)."""

    key: str
    value: Any
    origin: str

    def __str__(self) -> str:
        return f"{f'{self.key}={json.dumps(self.value, ensure_ascii=False)}':<60}  # {self.origin}"


def settings_with_origins(recipe: Recipe = None, overrides: Iterable[str] = ()) -> list[Setting]:
    """Return every setting of the checked recipe with its origin, in the order of the schema."""
    values = read_values(recipe, overrides)
    resolved = check_values(values).model_dump(mode="json")
    return [Setting(".".join(key), value, values.origin_of(key)) for key, value in _leaves(resolved, ())]


def _leaves(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    else:
        yield path, value
