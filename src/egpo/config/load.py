"""A recipe plus dotted overrides in, a checked config out; and back to YAML."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, TypeVar, overload

from pydantic import ValidationError

from egpo.config.faults import PlaceOf, faults_of
from egpo.config.schema import Config
from egpo.config.sections.section import Section
from egpo.config.sft import SftConfig
from egpo.config.yaml_text import Document, Path, dump_yaml, parse_yaml
from egpo.errors import ConfigError, Fault

Root = TypeVar("Root", bound=Section)


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
    return _checked(_overridden(recipe, overrides), root)


def load_recipe(recipe: str | FilePath | None = None, overrides: Iterable[str] = ()) -> Config | SftConfig:
    """A recipe of either kind: one with `data` and without `task` is for `egpo sft`."""
    values = _overridden(recipe, overrides)
    return _checked(values, SftConfig) if values.is_sft else _checked(values, Config)


def config_to_yaml(config: Section) -> str:
    """The resolved config: every knob, in the order of the schema. Reads back as the same config."""
    return dump_yaml(config.model_dump(mode="json"))


def config_schema(root: type[Section] = Config) -> dict[str, Any]:
    """A JSON schema for editors (`# yaml-language-server: $schema=egpo.schema.json`)."""
    title = "egpo recipe" if root is Config else "egpo sft recipe"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | root.model_json_schema() | {"title": title}


@dataclass(frozen=True)
class _Overridden:
    """A recipe's values with the overrides in them, and the overrides that were none."""

    value: dict[str, Any]
    place_of: PlaceOf
    faults: list[Fault]

    @property
    def is_sft(self) -> bool:
        return "data" in self.value and "task" not in self.value


def _overridden(recipe: str | FilePath | None, overrides: Iterable[str]) -> _Overridden:
    where = str(recipe) if recipe is not None else "defaults"
    document = Document({}) if recipe is None else _read(FilePath(recipe))
    applied, faults = _apply(document.value, [overrides] if isinstance(overrides, str) else list(overrides))
    return _Overridden(document.value, PlaceOf(where, document.line_of, applied), faults)


def _checked(values: _Overridden, root: type[Root]) -> Root:
    try:
        config = root.model_validate(values.value)
    except ValidationError as error:
        raise ConfigError(values.faults + faults_of(error, root, values.place_of)) from error
    if values.faults:
        raise ConfigError(values.faults)
    return config


def _read(path: FilePath) -> Document:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError([Fault("no such file", str(path), "check the path")]) from error
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        raise ConfigError([Fault(f"cannot be read: {error}", str(path), "a recipe is a YAML file in UTF-8")]) from error
    document = parse_yaml(text, str(path))
    if document.value is None:
        raise ConfigError(
            [Fault("the recipe is empty", str(path), "it needs at least model.path, and task.name or data.path")]
        )
    if not isinstance(document.value, dict):
        found = "a list" if isinstance(document.value, list) else f"`{str(document.value)[:40]}`"
        raise ConfigError([Fault(f"the recipe is {found}", str(path), "it must be a section of keys and values")])
    return document


@dataclass(frozen=True)
class _Override:
    text: str
    path: Path
    value: Any


def _apply(values: dict[str, Any], overrides: list[str]) -> tuple[dict[Path, str], list[Fault]]:
    """Write the overrides into the values; which path was set by which, and what could not be set."""
    applied: dict[Path, str] = {}
    faults: list[Fault] = []
    for override in _parsed(overrides, faults):
        section = values
        for depth, part in enumerate(override.path[:-1]):
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                name = ".".join(override.path[: depth + 1])
                faults.append(Fault(f"`{name}` is not a section", f"override `{override.text}`", "it has no keys"))
                break
        else:
            section[override.path[-1]] = override.value
            for path in [path for path in applied if path[: len(override.path)] == override.path]:
                del applied[path]
            applied[override.path] = override.text
    return applied, faults


def _parsed(overrides: list[str], faults: list[Fault]) -> Iterator[_Override]:
    for text in overrides:
        key, equals, value = text.partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            faults.append(Fault("not an override", f"`{text}`", "write section.key=value, as in update.lr=2e-6"))
            continue
        try:
            yield _Override(text, path, parse_yaml(value, f"override `{text}`").value)
        except ConfigError as error:
            faults.extend(error.faults)
