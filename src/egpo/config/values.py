"""The values of a recipe before they are checked: its files, the overrides over them, the machine's under them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from egpo.config.faults import PlaceOf
from egpo.config.includes import INCLUDE, Layers, read_layers
from egpo.config.machine import machine_file, this_machine
from egpo.config.old_spellings import present_override
from egpo.config.yaml_text import Path, parse_yaml
from egpo.errors import ConfigError, Fault


@dataclass(frozen=True)
class Values:
    """Plain values, where each came from, and the overrides that were none."""

    value: dict[str, Any]
    place_of: PlaceOf
    faults: list[Fault]

    @property
    def is_sft(self) -> bool:
        return "data" in self.value and "task" not in self.value

    def origin_of(self, key: Path) -> str:
        """The override or the line that set this very key, or `default`."""
        overrides = self.place_of.override_of
        setters = [text for path, text in overrides.items() if key[: len(path)] == path]
        return f"override `{setters[-1]}`" if setters else self.place_of.set_at.get(key, "default")


def read_values(recipe: str | FilePath | None, overrides: Iterable[str]) -> Values:
    where = str(recipe) if recipe is not None else "defaults"
    layers = Layers({}, {}) if recipe is None else read_layers(FilePath(recipe))
    applied, faults = apply_overrides(layers.value, [overrides] if isinstance(overrides, str) else list(overrides))
    _fill_from_machine(layers)
    return Values(layers.value, PlaceOf(where, layers.set_at, applied), faults)


def _fill_from_machine(layers: Layers) -> None:
    """How many GPUs there are is no recipe's business, unless it says so. A machine file with a fault is one now."""
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
    path: Path
    value: Any


def apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> tuple[dict[Path, str], list[Fault]]:
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


def _parsed(overrides: Sequence[str], faults: list[Fault]) -> Iterator[_Override]:
    for text in overrides:
        key, equals, value = text.partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            faults.append(Fault("not an override", f"`{text}`", "write section.key=value, as in update.lr=2e-6"))
            continue
        if path == (INCLUDE,):
            faults.append(Fault("`include` stands in files", f"override `{text}`", "write a recipe with `egpo new`"))
            continue
        try:
            # A shell hands `key=""` on as `key=`: empty text, as Hydra reads it. Nothing at all is `key=null`.
            parsed = parse_yaml(value, f"override `{text}`").value if value.strip() else ""
            yield _Override(text, *present_override(path, parsed))
        except ConfigError as error:
            faults.extend(error.faults)
