"""A user's own code: its import by module name, and the line at which it raised an exception.

A task is named `module:Class`, a reward `module:function`, an estimator or another row of a table `module:name`.
"""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from egpo.errors import InputError
from egpo.files import path_fault


def import_user_code(module_name: str, where: str) -> ModuleType:
    """Import a module by name or from a file (`my_reward.py`). `where` is the setting that names it, for messages.

    Raise InputError with the original message if the import fails.
    """
    # The console script `egpo` does not search the working directory, where a user's code usually is.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if module_name.endswith(".py") and (path_fault(module_name) or not Path(module_name).is_file()):
        raise InputError(f"there is no file `{module_name}`", where=where, fix=f"check the path (in {here})")
    try:
        return _load_file(Path(module_name)) if module_name.endswith(".py") else importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            fix = f"run egpo in the folder of the module, or install it (searched: {here})"
            raise InputError(f"there is no module `{module_name}`", where=where, fix=fix) from error
        what = f"the module `{module_name}` imports `{error.name}`, which is not installed"
        raise InputError(what, where=where, fix=f"install `{error.name}`") from error
    except (Exception, SystemExit) as error:  # the boundary to a user's module, which may raise anything when imported
        what = f"importing `{module_name}` failed ({type(error).__name__}: {error})"
        raise InputError(what, where=where, fix="fix the module, then retry") from error


def user_row(name: str, kind: str, fix: str) -> Any:
    """Import what `module:name` means: a row of a table (estimators, loss forms, ...), or a function in its place.

    `kind` is what it should be, for messages. Raise InputError with `fix` if there is nothing that can be called.
    """
    module_name, _, attribute = name.partition(":")
    where = f"{kind} {name}"
    found = getattr(import_user_code(module_name, where), attribute, None)
    if not callable(found):
        raise InputError(f"`{module_name}` has no {kind} `{attribute}`", where=where, fix=fix)
    return found


def raised_at(error: BaseException, function: Callable[..., Any]) -> str:
    """Return the place at which the file of a user's function raised the error, as `place_of` does."""
    return place_of(error, getattr(getattr(function, "__code__", None), "co_filename", ""))


def _load_file(path: Path) -> ModuleType:
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def place_of(error: BaseException, file: str) -> str:
    """Return the file and line at which the user's `file` raised the error; for a notebook `the cell, line N`.

    If the traceback does not contain this file, return the last file and line of the traceback.
    """
    frames = traceback.extract_tb(error.__traceback__)
    last = [frame for frame in frames if frame.filename == file][-1:] or frames[-1:]
    return ", ".join(f"{_shown(frame.filename)}, line {frame.lineno}" for frame in last)


def _shown(file: str) -> str:
    # Jupyter compiles each cell as a temporary file whose name means nothing to its author.
    return "the cell" if "ipykernel" in file else Path(file).name
