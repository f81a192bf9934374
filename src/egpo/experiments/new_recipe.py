"""Write a recipe that includes another recipe and contains only the settings that differ (`egpo new`)."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from egpo.config import Config, load_recipe
from egpo.config.includes import INCLUDE
from egpo.config.load import apply_overrides
from egpo.config.yaml_text import dump_yaml
from egpo.errors import InputError
from egpo.files import write_atomically
from egpo.recipes import DEFAULT, advice_for_missing, recipe_name, recipe_path


def write_recipe(path: Path, base: str | Path = DEFAULT, overrides: Sequence[str] = ()) -> Path:
    """Write a recipe that includes `base`, and return its path. `.yaml` is added to `path` if it has no suffix.

    `base` is the name of a recipe of the package, or the path of a file. The recipe is checked before it is written.
    An existing file is never replaced.
    """
    if not path.name:
        raise InputError(
            f"`{path}` has no file name", where="egpo new", fix="name the recipe, as in: egpo new hotter --from ..."
        )
    target = path if path.suffix in (".yaml", ".yml") else path.with_name(f"{path.name}.yaml")
    _require_base(base)
    if target.exists():
        raise InputError("the file exists already", where=str(target), fix="choose another name")
    if not target.parent.is_dir():
        raise InputError("the folder does not exist", where=str(target.parent), fix="create it first")
    config = load_recipe(base, [f"name={target.stem}", *overrides])
    verb = "run" if isinstance(config, Config) else "sft"
    try:
        write_atomically(target, f"# egpo {verb} {shlex.quote(str(target))}\n{_text(target, base, overrides)}")
    except OSError as error:
        fix = "choose another path"
        raise InputError(f"the file cannot be written ({error.strerror})", where=str(target), fix=fix) from error
    return target


def _text(target: Path, base: str | Path, overrides: Sequence[str]) -> str:
    included = recipe_name(base) or os.path.relpath(base, target.parent)
    values: dict[str, Any] = {INCLUDE: included, "name": target.stem}
    apply_overrides(values, overrides)
    return dump_yaml(values)


def _require_base(base: str | Path) -> None:
    path = recipe_path(base)
    if not path.is_file():
        raise InputError("the recipe does not exist", where=str(base), fix=advice_for_missing(path))
