"""The last checkpoint as one model folder."""

from functools import partial
from pathlib import Path

from egpo.config.machine import model_folder
from egpo.experiments.experiment import Experiment
from egpo.experiments.job import Job
from egpo.experiments.prints import files_in, folder_digest
from egpo.experiments.screen import Screen


def jobs(experiment: Experiment, screen: Screen) -> list[Job]:
    """None for the embedded engine, whose checkpoints hold whole models."""
    if experiment.config.engine == "local":
        return []
    actor = experiment.run.checkpoint_of(experiment.config.steps) / "actor"
    inputs = {"shards": folder_digest(actor)}
    return [Job("merge", inputs, lambda: files_in(experiment.merged), partial(_merged, experiment, actor))]


def _merged(experiment: Experiment, actor: Path) -> str:
    from egpo.merges.merge import merge

    merged = merge(actor, experiment.merged, base=model_folder(experiment.config.model.path), force=True)
    shards = f"{merged.world_size} shard{'s' if merged.world_size > 1 else ''}"
    return f"{merged.out}: {merged.num_parameters:,} parameters out of {shards}, in {merged.dtype}"
