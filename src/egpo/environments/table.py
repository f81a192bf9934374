"""The environments of the package by name, and the loading of outside classes.

To add an environment, add a row to ENVIRONMENTS: the path `module:Class` of a class with TRL's shape (protocol.py), and
where it runs. Outside classes, `my_module:MyClass` or `file.py:MyClass`, always run in worker processes.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

from egpo.environments.protocol import check_environment
from egpo.errors import InputError, nearest
from egpo.user_code import import_user_code

Place = Literal["here", "waits", "worker"]


@dataclass(frozen=True)
class EnvironmentRow:
    """An environment of the package. `place`: "here", in this process, as no call waits; "waits", in this process with
    time limits of its own, in a thread; "worker", in worker processes."""

    path: str
    place: Place


ENVIRONMENTS: Mapping[str, EnvironmentRow] = {
    "toolbox": EnvironmentRow("egpo.environments.toolbox.checking:ToolboxEnvironment", "here"),
    "bfcl_multi_turn": EnvironmentRow("egpo.environments.bfcl.multi_turn:BfclMultiTurn", "worker"),
    "openenv": EnvironmentRow("egpo.environments.openenv:OpenEnv", "waits"),
}


def load_environment(name: str) -> type:
    """Return the class of an environment: a name in ENVIRONMENTS, or `module:Class`. InputError if there is none."""
    where = f"environment {name}"
    if ":" not in name:
        row = ENVIRONMENTS.get(name.replace("-", "_"))
        if row is None:
            fix = f"{nearest(name, ENVIRONMENTS)} (or give `module:Class`)" if ENVIRONMENTS else "give `module:Class`"
            raise InputError(f"unknown environment `{name[:60]}`", fix=fix)
        module_name, _, class_name = row.path.partition(":")
        found: type = getattr(import_module(module_name), class_name)
        return found
    module_name, _, class_name = name.rpartition(":")
    module = import_user_code(module_name, where)
    kind = getattr(module, class_name, None)
    if not inspect.isclass(kind):
        classes = [key for key, value in vars(module).items() if inspect.isclass(value)]
        fix = nearest(class_name, classes) if classes else f"define a class `{class_name}` there"
        raise InputError(f"`{module_name}` has no class `{class_name}`", where=where, fix=fix)
    check_environment(kind, where)
    return kind


def place_of_environment(name: str) -> Place:
    row = ENVIRONMENTS.get(name.replace("-", "_"))
    return "worker" if row is None else row.place


def absolute_name(name: str) -> str:
    """Return a name that means the same in another working directory: the file of `file.py:Class` becomes absolute."""
    module, colon, kind = name.rpartition(":")
    return f"{Path(module).absolute()}{colon}{kind}" if module.endswith(".py") else name
