"""The training itself, by either engine, from where it stands."""

from functools import partial
from pathlib import Path
from typing import Any

from egpo.config import Config
from egpo.experiments.engines import train
from egpo.experiments.experiment import Experiment
from egpo.experiments.job import Job
from egpo.experiments.prepared import data_digest
from egpo.experiments.prints import digest_of, files_in, model_identity
from egpo.experiments.screen import Screen
from egpo.runs.differences import FREE
from egpo.runs.metric_table import ACCURACY, REWARD
from egpo.runs.metrics import read_metrics


def jobs(experiment: Experiment, screen: Screen) -> list[Job]:
    """A run that was trained with other settings is not trained over: the engine refuses it, and shows what differs."""
    experiment.require_data()
    config = experiment.training
    inputs = {
        "weights": model_identity(config.model.path),
        "data": data_digest(config),
        **{key: digest_of(value) for key, value in _arithmetic(config).items()},
    }
    return [Job("train", inputs, partial(_outputs, experiment), partial(_trained, experiment))]


def _arithmetic(config: Config) -> dict[str, Any]:
    """The settings, without those that the run may change (`FREE`): keys, and keys of sections as `verl.python`."""
    settings = config.model_dump(mode="json", exclude=set(FREE) if config.engine == "verl" else {*FREE, "verl"})
    for section, _, key in (name.partition(".") for name in FREE):
        settings.get(section, {}).pop(key, None)
    return settings


def _outputs(experiment: Experiment) -> list[Path]:
    """The metrics, and the last checkpoint: whole models of the embedded engine, shards of verl."""
    actor = experiment.run.checkpoint_of(experiment.config.steps) / "actor"
    return [experiment.run.metrics, *files_in(actor / "huggingface"), *files_in(actor)]


def _trained(experiment: Experiment) -> str:
    train(experiment.training, resume=experiment.run.config.is_file())
    shown = {"score": REWARD, "accuracy": ACCURACY}
    lines = [line for line in read_metrics(experiment.run.metrics) if REWARD in line]
    figures = [f"{name} {lines[0][key]:.2f} -> {lines[-1][key]:.2f}" for name, key in shown.items() if key in lines[-1]]
    return f"at step {experiment.config.steps}: {', '.join(figures)}"
