"""From the words of a command to experiments, all of them checked before the first begins."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from egpo.config import load_config
from egpo.errors import InputError
from egpo.experiments.experiment import Experiment
from egpo.experiments.foresight import require_later_stages


def load_experiments(
    recipes: Sequence[str], overrides: Sequence[str] = (), seeds: Sequence[int] = ()
) -> list[Experiment]:
    """Every recipe with the overrides, once for each seed: `name-s1` is then the run of seed 1. All are read and
    checked before the first one begins."""
    if not recipes:
        raise InputError("no recipe", where="egpo run", fix="name one or more: egpo run recipes/countdown_tiny.yaml")
    found = [Experiment(recipe, load_config(recipe, overrides)) for recipe in recipes]
    if seeds:
        found = [_with_seed(experiment, overrides, seed) for experiment in found for seed in dict.fromkeys(seeds)]
    _require_distinct([experiment.run.path for experiment in found])
    for experiment in found:
        require_later_stages(experiment.config)
    return found


def _with_seed(experiment: Experiment, overrides: Sequence[str], seed: int) -> Experiment:
    """Loaded again, so that a seed or a name that cannot be is a fault."""
    own = [f"seed={seed}", f"name={experiment.name}-s{seed}"]
    return Experiment(experiment.recipe, load_config(experiment.recipe, [*overrides, *own]))


def _require_distinct(folders: Sequence[Path]) -> None:
    if twice := [folder for folder, count in Counter(folders).items() if count > 1]:
        fix = "give each recipe a `name` of its own; an override of it reaches all of them"
        raise InputError(f"two experiments would lie in {twice[0]}", where="egpo run", fix=fix)
