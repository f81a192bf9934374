"""A recipe plus dotted overrides in, a checked config out; and back to YAML."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from egpo.config.faults import PlaceOf, faults_of
from egpo.config.schema import Config
from egpo.config.yaml_text import Document, Path, dump_yaml, parse_yaml
from egpo.errors import ConfigError, Fault


def load_config(recipe: str | FilePath | None = None, overrides: Iterable[str] = ()) -> Config:
    """Read, override, check. Every fault is in the one ConfigError, with its file, line and section.

    >>> load_config(overrides=["model.path=egpo-tiny", "task.name=countdown", "update.lr=2e-6"]).update.lr
    2e-06
    """
    where = str(recipe) if recipe is not None else "defaults"
    document = Document({}) if recipe is None else _read(FilePath(recipe))
    applied, faults = _apply(document.value, [overrides] if isinstance(overrides, str) else list(overrides))
    place_of = PlaceOf(where, document.line_of, applied)
    try:
        config = Config.model_validate(document.value)
    except ValidationError as error:
        raise ConfigError(faults + faults_of(error, Config, place_of)) from error
    if faults:
        raise ConfigError(faults)
    return config


def config_to_yaml(config: Config) -> str:
    """The resolved config: every knob, in the order of the schema. Reads back as the same config."""
    return dump_yaml(config.model_dump(mode="json"))


def config_schema() -> dict[str, Any]:
    """A JSON schema for editors (`# yaml-language-server: $schema=egpo.schema.json`)."""
    schema = Config.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "egpo recipe"} | schema


def _read(path: FilePath) -> Document:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError([Fault("no such file", str(path), "check the path")]) from error
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        raise ConfigError([Fault(f"cannot be read: {error}", str(path), "a recipe is a YAML file in UTF-8")]) from error
    document = parse_yaml(text, str(path))
    if document.value is None:
        raise ConfigError([Fault("the recipe is empty", str(path), "it needs at least model.path and task.name")])
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
