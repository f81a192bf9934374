"""Each setting of a recipe with the file and line, or the override, that set it."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from egpo.config.load import check_values
from egpo.config.values import read_values
from egpo.config.yaml_text import Path


@dataclass(frozen=True)
class Setting:
    """A dotted key, its value, and the place that set it: `default` where none did."""

    key: str
    value: Any
    origin: str

    def __str__(self) -> str:
        return f"{f'{self.key}={json.dumps(self.value, ensure_ascii=False)}':<60}  # {self.origin}"


def settings_with_origins(recipe: str | FilePath | None = None, overrides: Iterable[str] = ()) -> list[Setting]:
    """Every knob, in the order of the schema."""
    values = read_values(recipe, overrides)
    resolved = check_values(values).model_dump(mode="json")
    return [Setting(".".join(key), value, values.origin_of(key)) for key, value in _leaves(resolved, ())]


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    else:
        yield path, value
