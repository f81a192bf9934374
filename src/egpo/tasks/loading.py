"""Loads tasks by name: built-in tasks from the table TASKS, and a user's own task as `module:Class`.

To add a built-in task, add a row to TASKS. Settings are checked against the constructor's parameters. The methods of a
user's class are wrapped, so that an exception in them becomes an InputError that names its file and line.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from types import MappingProxyType
from typing import Any, SupportsIndex

from egpo.errors import EgpoError, InputError, nearest
from egpo.rewards.sandbox import require_sandbox
from egpo.tasks.bfcl_multi_turn import BfclMultiTurnTask
from egpo.tasks.code import Code
from egpo.tasks.countdown import Countdown
from egpo.tasks.dataset import NAME, Dataset, located
from egpo.tasks.function_calling import FunctionCalling
from egpo.tasks.gsm8k import Gsm8k
from egpo.tasks.mixed import Mixed
from egpo.tasks.protocol import METHODS, Task
from egpo.tasks.sourced import SourcedTask
from egpo.tasks.toolbox import Toolbox
from egpo.user_code import import_user_code, raised_at

SOURCED_TASKS: dict[str, type[SourcedTask]] = {
    "countdown": Countdown,
    "gsm8k": Gsm8k,
    "function_calling": FunctionCalling,
    "code": Code,
    "mixed": Mixed,
}
"""The built-in tasks with a generator and prepared data (`egpo prepare`)."""
EPISODE_TASKS: dict[str, type[SourcedTask] | type[BfclMultiTurnTask]] = {
    "toolbox": Toolbox,
    "bfcl_multi_turn": BfclMultiTurnTask,
}
"""The built-in tasks of several turns: each names its `environment`. They have no prepared data."""
TASKS: dict[str, type[SourcedTask] | type[Dataset] | type[BfclMultiTurnTask]] = {
    **SOURCED_TASKS,
    **EPISODE_TASKS,
    NAME: Dataset,
}


_given: ContextVar[Mapping[str, Task]] = ContextVar("given_tasks", default=MappingProxyType({}))
"""Task objects that were passed to `egpo.train` and others, by name, in the thread that is running them."""


@contextmanager
def given_task(task: Task) -> Iterator[str]:
    """Yield the task's name, `module:Class`, by which `load_task` returns this object until the `with` block ends."""
    kind = type(task)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if inspect.isclass(task):
        fix = f"give an object, as in {task.__name__}()"
        raise InputError(f"`{task.__name__}` is a class", where="task", fix=fix)
    _require_methods(task, kind.__qualname__, "task")
    guarded = task if isinstance(task, SourcedTask | Dataset | BfclMultiTurnTask) else _guarded_object(task, name)
    token = _given.set({**_given.get(), name: guarded})
    try:
        yield name
    finally:
        _given.reset(token)


def load_task(name: str, **settings: Any) -> Task:
    """Return the task of this name, constructed with `settings`. In the name, `-` is equivalent to `_`."""
    if name in _given.get():
        return _given.get()[name]
    task: Task = _found(name, settings)(**settings)
    return task


def check_task(name: str, settings: dict[str, Any]) -> None:
    """Raise InputError if the task is unknown or its settings are invalid. No problem is generated or read.

    A user's task is imported but not constructed, because its constructor may read data.
    """
    found = _found(name, settings)
    if ":" not in name:
        found(**settings)


def _found(name: str, settings: dict[str, Any]) -> type:
    found = _from_outside(name) if ":" in name else TASKS.get(name.replace("-", "_"))
    if found is None:
        shown = name if len(name) <= 60 else f"{name[:57]}..."
        raise InputError(f"unknown task `{shown}`", fix=f"{nearest(shown, TASKS)} (or give `module:Class`)")
    _check_settings(name, found, settings)
    return _guarded(found, name) if ":" in name else found


def data_source_of(task: Task, name: str) -> str:
    """Return the data source of the task's problems. For a user's task, this is its name, `module:Class`."""
    if isinstance(task, Dataset | BfclMultiTurnTask):
        return task.data_source
    if isinstance(task, SourcedTask):
        return task.data_source if task.source is not None else task.generated_data_source
    return name


def _from_outside(name: str) -> type:
    module_name, _, class_name = name.partition(":")
    module = import_user_code(module_name, f"task {name}")
    found = getattr(module, class_name, None)
    if not inspect.isclass(found):
        classes = [key for key, value in vars(module).items() if inspect.isclass(value)]
        raise InputError(
            f"`{module_name}` has no class `{class_name}`", where=f"task {name}", fix=nearest(class_name, classes)
        )
    _require_methods(found, class_name, f"task {name}")
    return found


def _require_methods(task: object, name: str, where: str) -> None:
    missing = [method for method in METHODS if not callable(getattr(task, method, None))]
    if missing:
        fix = f"add it: a task needs the methods {', '.join(METHODS)} (see docs/tasks.md)"
        raise InputError(f"the class `{name}` has no method `{'`, `'.join(missing)}`", where=where, fix=fix)


_GUARDED = ("problems", "prompt", "gold")
"""Methods in which an exception is the user's mistake. `judge_texts` handles the exceptions of `judge`."""


def _guarded_method(inner: Callable[..., Any], method: str, name: str) -> Callable[..., Any]:
    """Return a method of a user's task that raises InputError in place of any other exception.

    The InputError names the task, the method, the exception and its line.
    """

    @wraps(inner)
    def call(*args: Any, **settings: Any) -> Any:
        try:
            return inner(*args, **settings)
        except EgpoError:
            raise
        except (Exception, SystemExit) as error:  # boundary: a user's class may raise anything
            what = f"the task's `{method}` raised {type(error).__name__}: {error} ({raised_at(error, inner)})"
            raise InputError(what, where=f"task {name}", fix=f"correct `{method}` of the task") from error

    return call


class _GuardedTask:
    """A user's task object with guarded methods. The object itself is not changed."""

    def __init__(self, task: Task, name: str) -> None:
        self._task = task
        for method in _GUARDED:
            setattr(self, method, _guarded_method(getattr(task, method), method, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


def _guarded_object(task: Task, name: str) -> Task:
    """Return the task with guarded methods. Its class has the name of the user's class, for messages."""
    kind = type(task)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    made: Task = type(kind.__name__, (_GuardedTask,), names)(task, name)
    return made


def _guarded(found: type, name: str) -> type:
    """Return a subclass of a user's task with guarded methods."""

    def reduced(self: Any, protocol: SupportsIndex) -> Any:
        """Pickle the task as an instance of the user's own class: worker processes cannot import the subclass."""
        whole: Any = found.__reduce_ex__(self, protocol)  # type: ignore[call-arg]
        is_usual = isinstance(whole, tuple) and whole[1][:1] == (made,)
        return (object.__new__, (found,), *whole[2:]) if is_usual else whole

    names = {"__module__": found.__module__, "__qualname__": found.__qualname__, "__doc__": found.__doc__}
    methods = {method: _guarded_method(getattr(found, method), method, name) for method in ("__init__", *_GUARDED)}
    made: type = type(found)(found.__name__, (found,), {**names, **methods, "__reduce_ex__": reduced})
    return made


def _check_settings(name: str, cls: type, settings: dict[str, Any]) -> None:
    known = _setting_names(cls)
    unknown = [key for key in settings if known is not None and key not in known]
    if unknown:
        fix = nearest(unknown[0], known) if known else "the task takes no settings"
        raise InputError(f"unknown setting `{unknown[0]}`", where=f"task {name}", fix=fix)


def _setting_names(cls: type) -> set[str] | None:
    """Return the keyword arguments that the constructors of a class and its bases accept; None if they accept any."""
    names: set[str] = set()
    takes_any = False
    for init in (vars(owner)["__init__"] for owner in cls.__mro__ if owner is not object and "__init__" in vars(owner)):
        parameters = list(inspect.signature(init).parameters.values())[1:]
        names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        # A constructor without **settings passes nothing on to its base classes.
        if not takes_any:
            break
    return None if takes_any else names


def sandbox_tier(task: Task, settings: Mapping[str, Any]) -> str | None:
    """Return the kind of sandbox in which the task runs programs that the model wrote; None if it runs no programs.

    Raise an error if no sandbox works, so that this is found before any response is sampled.
    """
    runs_programs = task.runs_programs if isinstance(task, Dataset) else isinstance(task, Code | Mixed)
    return require_sandbox(settings.get("sandbox")).tier if runs_programs else None


def worker_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for a process that runs in another folder than the launch, which is on its import path.

    The paths of the task `dataset` become absolute.
    """
    return located(settings, sys.path) if name == NAME else dict(settings)
