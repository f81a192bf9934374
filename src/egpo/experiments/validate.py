"""Load recipes as experiments, and report the faults of all stages before the first stage begins."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from egpo.config import Config, load_config
from egpo.config.schema import Task
from egpo.errors import ConfigError, Fault, InputError
from egpo.evals.bfcl.categories import parse_categories
from egpo.experiments.exams import exams_of, require_servable
from egpo.experiments.experiment import Experiment
from egpo.prepared_data import data_plan
from egpo.serving.engine_options import refuse_own_options
from egpo.tasks import load_task
from egpo.verl.launch.refusals import refuse_what_verl_lacks


def load_experiments(
    recipes: Sequence[str], overrides: Sequence[str] = (), seeds: Sequence[int] = ()
) -> list[Experiment]:
    """Load every recipe with the overrides, once for each seed: `name-s1` is the run of seed 1. All are checked."""
    if not recipes:
        fix = "name at least one: egpo run countdown_tiny"
        raise InputError("no recipe is given", where="egpo run", fix=fix)
    found = [_loaded(recipe, overrides) for recipe in recipes]
    if seeds:
        found = [_with_seed(experiment, overrides, seed) for experiment in found for seed in dict.fromkeys(seeds)]
    _require_distinct([experiment.run.path for experiment in found])
    for experiment in found:
        require_later_stages(experiment.config)
    return found


def require_later_stages(config: Config) -> None:
    """Raise ConfigError with every fault of the recipe's tasks, data, exams, server and BFCL settings."""
    faults = [*_faults("task", _make_task, config.task), *_faults("prepare", data_plan, config)]
    for task in config.eval.tasks:
        faults += _faults("eval.tasks", _make_task, task)
    faults += _faults("eval.tasks", exams_of, config)
    if config.engine == "verl":
        faults += _faults("engine", refuse_what_verl_lacks, config)
    if config.eval.serve:
        faults += _faults("eval.serve", require_servable, config)
    faults += _faults("eval.engine_options", refuse_own_options, config.eval.engine_options, "eval.engine_options")
    if config.eval.bfcl is not None:
        faults += _faults("eval.bfcl.categories", parse_categories, ",".join(config.eval.bfcl.categories), own=True)
    if faults:
        raise ConfigError(faults)


def _with_seed(experiment: Experiment, overrides: Sequence[str], seed: int) -> Experiment:
    """Return the experiment with this seed. Its recipe is loaded again, so that an invalid seed or name is reported."""
    return _loaded(experiment.recipe, [*overrides, f"seed={seed}", f"name={experiment.name}-s{seed}"])


def _loaded(recipe: str, overrides: Sequence[str]) -> Experiment:
    return Experiment(recipe, load_config(recipe, overrides), tuple(overrides))


def _require_distinct(folders: Sequence[Path]) -> None:
    if twice := [folder for folder, count in Counter(folders).items() if count > 1]:
        fix = "give each recipe its own `name`; an override of `name` applies to all recipes"
        raise InputError(f"two experiments would write to {twice[0]}", where="egpo run", fix=fix)


def _make_task(task: Task) -> None:
    """Construct a built-in task, to check its settings. A user's own task is not checked: that might take long."""
    if ":" not in task.name:
        load_task(task.name, **task.settings)


def _faults(where: str, check: Callable[..., object], *values: object, own: bool = False) -> list[Fault]:
    """Return the faults that `check(*values)` raises, each with its location in the recipe.

    `where` is the location of faults that name none; with `own=True` it replaces the location of every fault.
    """
    try:
        check(*values)
    except InputError as error:
        return [replace(fault, where=where if own else fault.where or where) for fault in error.faults]
    return []
