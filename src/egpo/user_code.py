"""Code from outside the package, named by its module: a task as `module:Class`, a reward as `module:function`."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from egpo.errors import InputError


def import_user_code(module_name: str, where: str) -> ModuleType:
    """The module of that name, or in the file of that name (`my_reward.py`); `where` says who asked for it.

    Whatever goes wrong is the user's to mend: InputError, with what the module said.
    """
    # A console script's path starts at its own folder; such code usually lies where the command is given.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return _load_file(Path(module_name)) if module_name.endswith(".py") else importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            fix = f"run where it lies, or install it ({here} was searched)"
            raise InputError(f"no module `{module_name}`", where=where, fix=fix) from error
        raise InputError(f"`{module_name}` needs `{error.name}`", where=where, fix="install it") from error
    except (Exception, SystemExit) as error:  # the boundary to a user's module, which may raise anything when imported
        what = f"importing `{module_name}` failed ({type(error).__name__}: {error})"
        raise InputError(what, where=where, fix="mend it") from error


def _load_file(path: Path) -> ModuleType:
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
