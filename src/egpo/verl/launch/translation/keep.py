"""How long, what is kept, and where it lies: verl's trainer, in our run folder."""

from collections.abc import Iterator

from egpo.config import Config
from egpo.verl.launch.places import VerlPlaces
from egpo.verl.launch.translation.setting import Setting

NEVER = -1


def keep_settings(config: Config, places: VerlPlaces, start: int) -> Iterator[Setting]:
    """`start` is the step whose checkpoint the run goes on from; 0 for its beginning, where it is validated first.

    Old checkpoints are removed by the launcher (`keep_last`, `keep_best`), and trackers fed by it, as under the local
    engine: verl has no best checkpoints, and a tracker of its own would not go on with a resumed run's curve.
    """
    every = config.validation.every
    yield Setting("trainer.project_name", "egpo", "name")
    yield Setting("trainer.experiment_name", config.name, "name")
    yield Setting("trainer.total_training_steps", config.steps, "steps")
    # An epoch has one step at least: so many epochs hold all steps, whatever the size of the data.
    yield Setting("trainer.total_epochs", config.steps, "steps")
    # verl saves nothing at all at a period of 0; ours still saves the last step.
    yield Setting("trainer.save_freq", config.checkpoints.every or config.steps, "checkpoints.every")
    yield Setting("trainer.test_freq", every or NEVER, "validation.every")
    yield Setting("trainer.val_before_train", bool(every) and not start, "validation.every")
    yield Setting("trainer.logger", ["console", "file"], "metrics.jsonl, watch.trackers")
    yield Setting("trainer.default_local_dir", str(places.folder.checkpoints.absolute()), "runs, name")
    yield Setting("trainer.rollout_data_dir", str(places.rollouts), "watch.rollouts_every")
    yield Setting("trainer.validation_data_dir", str(places.validations), "validation")
    yield Setting("trainer.resume_mode", "resume_path" if start else "disable", "--resume")
    if start:
        checkpoint = str(places.folder.checkpoint_of(start).absolute())
        yield Setting("trainer.resume_from_path", checkpoint, "--resume")
    yield Setting("hydra.run.dir", str(places.hydra), "runs, name")
    yield Setting("hydra.output_subdir", None, "config.yaml holds it all")
