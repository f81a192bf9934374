"""From a recipe to a session that can take its next step: new, or as it was when its checkpoint was written."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from egpo.config import SftConfig, config_to_yaml
from egpo.data.manifest import data_digest
from egpo.local.checkpoints.checkpoint import Checkpoints
from egpo.local.checkpoints.resume import config_identity
from egpo.local.quiet import without_progress_bars
from egpo.local.sessions.interrupts import Interrupts
from egpo.local.sessions.launches import record_launch
from egpo.local.sessions.session import Surroundings
from egpo.local.sft.reading import REASONS
from egpo.local.sft.run import SftRun, open_sft_run
from egpo.local.sft.session import SftSession, restore
from egpo.runs.folder import RunFolder
from egpo.runs.ledger import Ledger
from egpo.runs.live import LiveView
from egpo.runs.rewinding import NOTHING_YET, require_rewindable, rewind
from egpo.runs.spoken_warnings import warnings_said_by
from egpo.runs.trackers import open_trackers


def sft_folder(config: SftConfig) -> RunFolder:
    return RunFolder(Path(config.runs) / config.name)


def sft_checkpoints(config: SftConfig) -> Checkpoints:
    """The command that starts the run again names the recipe in its folder."""
    folder = sft_folder(config)
    return Checkpoints(
        folder.checkpoints,
        identity=config_identity(config),
        command=f"egpo sft {shlex.quote(str(folder.config))}",
        keep_last=config.checkpoints.keep_last,
        keep_best=config.checkpoints.keep_best,
    )


def open_quietly(config: SftConfig) -> SftRun:
    """Without progress bars, and with our warnings as plain lines: there is no live view yet to show them."""
    with without_progress_bars(), warnings_said_by(partial(print, file=sys.stderr)):
        return open_sft_run(config)


@contextmanager
def new_session(config: SftConfig, interrupts: Interrupts) -> Iterator[SftSession]:
    """Everything is loaded and read before the first file is written: a recipe that fails leaves no folder."""
    sft_folder(config).require_free()
    run = open_quietly(config)
    with RunFolder.create(sft_folder(config).path, config_to_yaml(config)) as folder:
        _record_launch(run, folder, 0)
        with _surroundings(run, folder, interrupts) as around:
            yield SftSession(run, around)


@contextmanager
def resumed_session(config: SftConfig, step: int | None, interrupts: Interrupts) -> Iterator[SftSession]:
    """After the checkpoint of `step`, or the newest, or from the beginning where there is none. What the run wrote
    about later steps is forgotten, but not before everything is loaded."""
    with RunFolder.resume(sft_folder(config).path, config_to_yaml(config)) as folder:
        checkpoints = sft_checkpoints(config)
        start = checkpoints.choose(step)
        saved = checkpoints.read(start) if start else None
        require_rewindable(folder, start or NOTHING_YET)
        run = open_quietly(config)
        if saved is not None:
            restore(run, saved, checkpoints.model_folder(start))
        _record_launch(run, folder, start)
        # In this order: a checkpoint must never be newer than the metrics.
        checkpoints.forget_after(start)
        rewind(folder, start or NOTHING_YET)
        with _surroundings(run, folder, interrupts) as around:
            yield SftSession(run, around, start, saved.score if saved else None)


@contextmanager
def _surroundings(run: SftRun, folder: RunFolder, interrupts: Interrupts) -> Iterator[Surroundings]:
    """The view comes last: how many steps there are is known once the data is read."""
    config, data = run.config, run.data
    title = f"{config.name}: sft of {config.model.path} on {len(data.train):,} examples of {config.data.path}"
    trackers = open_trackers(config.watch.trackers, config.name, config.model_dump(mode="json"), folder)
    with closing(trackers), LiveView(run.num_steps, title) as view, warnings_said_by(view.say):
        for reason, count in data.dropped.most_common():
            view.say(f"left out {count:,} of {data.num_rows:,} rows or answers: {REASONS[reason]}")
        yield Surroundings(folder, sft_checkpoints(config), view, Ledger(folder, view, trackers), interrupts)


def _record_launch(run: SftRun, folder: RunFolder, step: int) -> None:
    data = run.config.data
    paths = {"train": data.path} | ({"evaluation": data.eval_path} if data.eval_path else {})
    files = {name: Path(path) for name, path in paths.items()}
    digests = {name: data_digest(path) for name, path in files.items()}
    record_launch(folder, seed=run.config.seed, after_step=step, device=run.policy.device, data=digests, files=files)
