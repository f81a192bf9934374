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
from egpo.errors import InputError, nearest
from egpo.files import write_atomically


def write_recipe(path: Path, base: Path, overrides: Sequence[str] = ()) -> Path:
    """Write a recipe that includes `base`, and return its path. `.yaml` is added to `path` if it has no suffix.

    The recipe is checked before it is written. An existing file is never replaced.
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


def _text(target: Path, base: Path, overrides: Sequence[str]) -> str:
    values: dict[str, Any] = {INCLUDE: os.path.relpath(base, target.parent), "name": target.stem}
    apply_overrides(values, overrides)
    return dump_yaml(values)


def _require_base(base: Path) -> None:
    if not base.is_file():
        there = [str(path) for path in base.parent.glob("*.yaml")] if base.parent.is_dir() else []
        fix = nearest(str(base), there) if there else "give the path of a recipe"
        raise InputError("the recipe does not exist", where=str(base), fix=fix)
