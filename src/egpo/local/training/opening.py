"""From a recipe to a session that can take its next step: new, or as it was when its checkpoint was written."""

import shlex
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from egpo.config import Config, config_to_yaml
from egpo.local.checkpoints.checkpoint import Checkpoints
from egpo.local.checkpoints.resume import config_identity, restore, seed_everything
from egpo.local.progress_bars import without_progress_bars
from egpo.local.run import Run, open_run
from egpo.local.training.preflight import check_before_training, data_digests, data_files, require_disk_room
from egpo.local.training.rl_session import TrainSession
from egpo.local.training.session import Interrupts, Surroundings, record_launch
from egpo.runs.folder import RunFolder
from egpo.runs.ledger import NOTHING_YET, Ledger, require_rewindable, rewind
from egpo.runs.live import LiveView
from egpo.runs.trackers import open_trackers


def run_folder(config: Config) -> RunFolder:
    return RunFolder(Path(config.runs) / config.name)


def run_checkpoints(config: Config) -> Checkpoints:
    """The command that starts the run again names the recipe in its folder."""
    folder = run_folder(config)
    return Checkpoints(
        folder.checkpoints,
        identity=config_identity(config),
        command=f"egpo train {shlex.quote(str(folder.config))}",
        keep_last=config.checkpoints.keep_last,
        keep_best=config.checkpoints.keep_best,
    )


@contextmanager
def new_session(config: Config, view: LiveView, interrupts: Interrupts) -> Iterator[TrainSession]:
    """Everything is loaded and tried before the first file is written: a recipe that fails leaves no folder."""
    run_folder(config).require_free()
    run = open_seeded(config)
    sandbox = check_before_training(run)
    require_disk_room(run, run_checkpoints(config))
    with RunFolder.create(run_folder(config).path, config_to_yaml(config)) as folder:
        _record_launch(run, folder, 0, sandbox)
        with _surroundings(config, folder, view, interrupts) as around:
            yield TrainSession(run, around)


@contextmanager
def resumed_session(config: Config, step: int | None, view: LiveView, interrupts: Interrupts) -> Iterator[TrainSession]:
    """After the checkpoint of `step`, or the newest, or from the beginning where there is none. What the run wrote
    about later steps is forgotten, but not before everything is loaded and found in order."""
    with RunFolder.resume(run_folder(config).path, config_to_yaml(config)) as folder:
        checkpoints = run_checkpoints(config)
        start = checkpoints.choose(step)
        saved = checkpoints.read(start) if start else None
        require_rewindable(folder, start or NOTHING_YET)
        run = open_seeded(config)
        sandbox = check_before_training(run)
        if saved is not None:
            restore(run, saved, checkpoints.model_folder(start))
        _record_launch(run, folder, start, sandbox)
        # In this order: a checkpoint must never be newer than the metrics.
        checkpoints.forget_after(start)
        rewind(folder, start or NOTHING_YET)
        require_disk_room(run, checkpoints)
        with _surroundings(config, folder, view, interrupts) as around:
            yield TrainSession(run, around, start, saved.score if saved else None)


def open_seeded(config: Config) -> Run:
    """A task may draw from the global generators when it is made, and later."""
    seed_everything(config.seed)
    with without_progress_bars():
        return open_run(config)


@contextmanager
def _surroundings(config: Config, folder: RunFolder, view: LiveView, interrupts: Interrupts) -> Iterator[Surroundings]:
    trackers = open_trackers(config.watch.trackers, config.name, config.model_dump(mode="json"), folder)
    with closing(trackers):
        yield Surroundings(folder, run_checkpoints(config), view, Ledger(folder, view, trackers), interrupts)


def _record_launch(run: Run, folder: RunFolder, step: int, sandbox: str | None) -> None:
    record_launch(
        folder,
        seed=run.config.seed,
        after_step=step,
        device=run.policy.device,
        data=data_digests(run),
        files=data_files(run),
        sandbox=sandbox,
    )
