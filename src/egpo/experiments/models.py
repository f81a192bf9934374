"""The models of an experiment that are evaluated: what it began with, and what it came to."""

from typing import Literal

from egpo.errors import InputError
from egpo.evals.places import ModelPlace, find_model
from egpo.experiments.experiment import Experiment

Which = Literal["base", "trained"]


def place_of(experiment: Experiment, which: Which) -> ModelPlace:
    """InputError where the training has not come to its end."""
    config, run = experiment.training, experiment.run
    if which == "base":
        return find_model(config.model.path)
    model = experiment.trained_model
    if not (model / "config.json").is_file():
        fix = "let `train` and `merge` come first: leave out --only and --from"
        raise InputError(f"no model after step {config.steps}", where=str(run.path), fix=fix)
    return ModelPlace(str(model), f"{config.name} step {config.steps}", run, config.steps)
