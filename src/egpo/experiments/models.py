"""The models of an experiment that are evaluated: what it began with, and what it came to."""

from pathlib import Path
from typing import Literal

from egpo.errors import InputError
from egpo.evals.targets import ModelPlace, find_model
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


def downloaded(model: str) -> str:
    """A folder of this machine: `model` itself, or what the hub has under that name, fetched where it is not here yet.
    For those that take nothing but folders."""
    if Path(model).is_dir():
        return model
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return str(snapshot_download(model))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        fix = "download it, and name its folder under `models` of egpo.machine.yaml"
        raise InputError(
            "not on this machine, and not to be had from the hub", where=f"model {model}", fix=fix
        ) from error
