"""A recipe plus dotted overrides in, a checked config out; and back to YAML."""

from collections.abc import Iterable
from pathlib import Path as FilePath
from typing import Any, TypeVar, overload

from pydantic import ValidationError

from egpo.config.faults import faults_of
from egpo.config.includes import INCLUDE
from egpo.config.schema import Config
from egpo.config.sections.section import Section
from egpo.config.sft import SftConfig
from egpo.config.values import Values, read_values
from egpo.config.yaml_text import dump_yaml
from egpo.errors import ConfigError

Root = TypeVar("Root", bound=Section)
_INCLUDE_SCHEMA = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    "description": "Recipes, or parts of them, that this one goes over; relative to this file.",
}


@overload
def load_config(recipe: str | FilePath | None = None, overrides: Iterable[str] = ()) -> Config: ...
@overload
def load_config(recipe: str | FilePath | None, overrides: Iterable[str], root: type[Root]) -> Root: ...
def load_config(
    recipe: str | FilePath | None = None, overrides: Iterable[str] = (), root: type[Section] = Config
) -> Section:
    """Read, override, check. Every fault is in the one ConfigError, with its file, line and section.

    >>> load_config(overrides=["model.path=egpo-tiny", "task.name=countdown", "update.lr=2e-6"]).update.lr
    2e-06
    """
    return _checked(read_values(recipe, overrides), root)


def load_recipe(recipe: str | FilePath | None = None, overrides: Iterable[str] = ()) -> Config | SftConfig:
    """A recipe of either kind: one with `data` and without `task` is for `egpo sft`."""
    return check_values(read_values(recipe, overrides))


def check_values(values: Values) -> Config | SftConfig:
    return _checked(values, SftConfig) if values.is_sft else _checked(values, Config)


def config_to_yaml(config: Section) -> str:
    """The resolved config: every knob, in the order of the schema. Reads back as the same config."""
    return dump_yaml(config.model_dump(mode="json"))


def config_schema(root: type[Section] = Config) -> dict[str, Any]:
    """A JSON schema for editors (`# yaml-language-server: $schema=egpo.schema.json`)."""
    title = "egpo recipe" if root is Config else "egpo sft recipe"
    described = root.model_json_schema()
    # An included file may bring what is required.
    described |= {"title": title, "properties": {INCLUDE: _INCLUDE_SCHEMA, **described["properties"]}}
    described["anyOf"] = [{"required": described.pop("required")}, {"required": [INCLUDE]}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | described


def _checked(values: Values, root: type[Root]) -> Root:
    try:
        config = root.model_validate(values.value)
    except ValidationError as error:
        raise ConfigError(values.faults + faults_of(error, root, values.place_of)) from error
    if values.faults:
        raise ConfigError(values.faults)
    return config
