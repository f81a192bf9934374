"""What the Python functions accept: recipes, runs, models and tasks in all forms, checked before anything is loaded."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from egpo.api_results import RunResult
from egpo.config import Config, SftConfig, load_config
from egpo.errors import InputError
from egpo.runs.ledger import OnStep
from egpo.sections import Section
from egpo.tasks.loading import given_task
from egpo.tasks.protocol import Task

Recipe = str | os.PathLike[str] | Mapping[str, Any] | Config | None
SftRecipe = str | os.PathLike[str] | Mapping[str, Any] | SftConfig | None
Model = str | os.PathLike[str] | RunResult
Root = TypeVar("Root", bound=Section)
_RUN_FORMS = "a folder, a name, or the result of `train` or `sft`"


def run_word(run: Model, where: str) -> str:
    """Return the path or name of a run or model. Raise InputError for anything else, such as a list of them."""
    if isinstance(run, RunResult):
        return str(run.folder)
    if not isinstance(run, str | os.PathLike):
        fix = "give each as an argument of its own" if isinstance(run, list | tuple) else f"give {_RUN_FORMS}"
        raise InputError(f"{type(run).__name__} is not a run or a model", where=where, fix=fix)
    return os.fspath(run)


def recipe_word(recipe: Recipe) -> str:
    """Return the recipe as a word of a command in advice; a recipe that is not a file must be written to one first."""
    return os.fspath(recipe) if isinstance(recipe, str | os.PathLike) else "recipe.yaml"


def as_words(given: str | Iterable[str] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())


def require_counts(where: str, **counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and (not isinstance(count, int) or count < 1):
            raise InputError(f"`{name}` is {count!r}", where=where, fix="give a whole number from 1 on")


def require_callable(on_step: object) -> None:
    if on_step is not None and not callable(on_step):
        what = f"{type(on_step).__name__} cannot be called"
        raise InputError(what, where="on_step", fix="give a function that takes a StepReport")


def task_overrides(task: Task | str | None, name: str | None) -> dict[str, Any]:
    """Return the overrides for a task. The settings of a recipe are for its own task, not for a task object."""
    if name is None or isinstance(task, str):
        return {} if name is None else {"task.name": name}
    return {"task": {"name": name, "settings": {}}}


def refuse_settings_of_object(task: Task | str | None, settings: Mapping[str, Any] | None) -> None:
    if settings and task is not None and not isinstance(task, str):
        what, fix = "they cannot be given with a task object", "pass them to the constructor of its class"
        raise InputError(what, where="task_settings", fix=fix)


def config_of(
    recipe: Recipe | SftRecipe, settings: Mapping[str, Any] | None, more: Mapping[str, Any], root: type[Root]
) -> Root:
    """Return the checked config of a recipe and its overrides."""
    if settings is not None and not isinstance(settings, Mapping):
        fix = 'give a mapping, as in {"rollout.n": 8}'
        raise InputError(f"{type(settings).__name__} is not a mapping", where="settings", fix=fix)
    overrides = list(_overrides({**(settings or {}), **more}, ""))
    if isinstance(recipe, Section):
        return load_config(recipe.model_dump(mode="json"), overrides, root)
    if isinstance(recipe, Mapping):
        return load_config(None, [*_overrides(recipe, ""), *overrides], root)
    if recipe is not None and not isinstance(recipe, str | os.PathLike):
        fix = "give the name of a recipe, a YAML file, a mapping or a Config; a task object is given as `task=`"
        raise InputError(f"{type(recipe).__name__} is not a recipe", where="recipe", fix=fix)
    return load_config(None if recipe is None else Path(recipe), overrides, root)


def _overrides(settings: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """Yield `section.key=value` for each setting. Keys may be dotted, and sections may be mappings."""
    for key, value in settings.items():
        if not isinstance(key, str):
            raise InputError(f"the key {key!r} is not text", where="settings", fix='write "section.key"')
        name = f"{prefix}{key}"
        # The settings of a task are its own: a mapping there is a value.
        if isinstance(value, Mapping) and value and not f"{name}.".startswith("task.settings."):
            yield from _overrides(value, f"{name}.")
            continue
        try:
            yield f"{name}={json.dumps(_plain(value))}"
        except (TypeError, ValueError) as error:
            what = f"`{name}` is {type(value).__name__}, which a recipe cannot hold"
            raise InputError(
                what, where="settings", fix="give text, a number, true or false, a list or None"
            ) from error


def _plain(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


@contextmanager
def task_name(task: Task | str | None) -> Iterator[str | None]:
    """Yield the name of a task. A task object is registered under that name until the `with` block ends."""
    if task is None or isinstance(task, str):
        yield task
    else:
        with given_task(task) as name:
            yield name


def refuse_on_verl(task: Task | str | None, on_step: OnStep | None) -> None:
    fix = "leave it out, or train with engine=local"
    if on_step is not None:
        what = "callbacks are for the engine `local`: they cannot stop a run of verl"
        raise InputError(what, where="on_step", fix=fix)
    if task is not None and not isinstance(task, str):
        what = "verl judges in other processes, which do not have this object"
        raise InputError(what, where="task", fix='give the name of its class, as in task="my_tasks:Sums"')
