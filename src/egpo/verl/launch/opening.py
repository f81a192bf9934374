"""From a recipe to a launch that can start: new, or after the checkpoint that it goes on from."""

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from egpo.config import Config, config_to_yaml
from egpo.rewards.scoring import require_visible_tags
from egpo.runs.folder import RunFolder
from egpo.runs.ledger import NOTHING_YET, Ledger, rewind
from egpo.runs.live import LiveView
from egpo.runs.provenance import Provenance, describe_launch, record_resumption, write_provenance
from egpo.runs.trackers import open_trackers
from egpo.tasks import Task, load_task
from egpo.tasks.load import sandbox_tier
from egpo.tasks.sourced import SourcedTask
from egpo.verl.launch.layout import VerlPlaces
from egpo.verl.launch.mirror import Mirror, VerlCheckpoints, adopt_figures, move_rollouts, recorded_steps
from egpo.verl.launch.preflight import (
    Installed,
    ask_interpreter,
    load_tokenizer,
    require_context,
    require_devices,
    require_free_ports,
    require_verl,
)
from egpo.verl.launch.problems import ProblemFiles, chosen_problems, write_problems
from egpo.verl.launch.processes import end_leftovers
from egpo.verl.launch.translation import Setting, model_place, translate


@dataclass(frozen=True, eq=False)
class Launch:
    """Everything but the process: `settings` are verl's, `start` is the step that the run goes on from."""

    config: Config
    places: VerlPlaces
    python: str
    settings: list[Setting]
    start: int
    mirror: Mirror


@dataclass(frozen=True, eq=False)
class _Checked:
    """What was found in order before anything is written."""

    installed: Installed
    task: Task
    tokenizer: Any
    sandbox: str | None


def run_folder(config: Config) -> RunFolder:
    return RunFolder(Path(config.runs) / config.name)


@contextmanager
def new_launch(config: Config, view: LiveView) -> Iterator[Launch]:
    """A recipe that fails its checks leaves no folder."""
    run_folder(config).require_free()
    checked = _check(config, view)
    with (
        RunFolder.create(run_folder(config).path, config_to_yaml(config)) as folder,
        _launch(config, VerlPlaces(folder), checked, 0, view) as launch,
    ):
        yield launch


@contextmanager
def resumed_launch(config: Config, step: int | None, view: LiveView) -> Iterator[Launch]:
    """After the checkpoint of `step`, or the newest, or from the beginning where there is none. What an earlier
    launcher left when it was killed is taken over or ended."""
    with RunFolder.resume(run_folder(config).path, config_to_yaml(config)) as folder:
        places = VerlPlaces(folder)
        _clear_after_killed_launcher(places, view)
        checked = _check(config, view)
        start = VerlCheckpoints(folder, config.verl.ranks).choose(step)
        if start and start not in recorded_steps(folder.metrics):
            view.say(f"step {start} was saved and never logged: its figures are lost, the run goes on after it")
        with _launch(config, places, checked, start, view) as launch:
            yield launch


def _clear_after_killed_launcher(places: VerlPlaces, view: LiveView) -> None:
    left = end_leftovers(places)
    if left is not None:
        view.say(f"an earlier launcher of this run was killed: {left.num_processes} processes of it are ended now")
        adopt_figures(places.folder, left.metrics)
        places.launch.unlink()


def _check(config: Config, view: LiveView) -> _Checked:
    """After `refuse_what_verl_lacks`."""
    view.stage("check")
    installed = ask_interpreter(config)
    require_verl(config, installed)
    require_devices(config, installed)
    task = load_task(config.task.name, **config.task.settings)
    chosen_problems(config, task)
    tokenizer = load_tokenizer(model_place(config.model.path))
    if isinstance(task, SourcedTask):
        require_visible_tags(tokenizer, task.data_source, config.segments.tags)
    return _Checked(installed, task, tokenizer, sandbox_tier(task, config.task.settings))


@contextmanager
def _launch(config: Config, places: VerlPlaces, checked: _Checked, start: int, view: LiveView) -> Iterator[Launch]:
    view.stage("write data")
    files = write_problems(config, places, checked.task, checked.tokenizer)
    require_context(model_place(config.model.path), files.longest_prompt + config.rollout.max_response_tokens)
    settings = translate(config, places, files, start)
    require_free_ports(settings)
    _record(config, places.folder, checked, start, files)
    # In this order: a checkpoint must never be newer than the metrics.
    VerlCheckpoints(places.folder, config.verl.ranks).forget_after(start)
    # verl saves a step before it dumps and logs it: of the last one before a kill there may be a checkpoint and
    # responses that nobody has taken over, and no figures.
    move_rollouts(places)
    rewind(places.folder, start or NOTHING_YET, gaps=True)
    shutil.rmtree(places.rollouts, ignore_errors=True)
    trackers = open_trackers(config.watch.trackers, config.name, config.model_dump(mode="json"), places.folder)
    with closing(trackers):
        mirror = Mirror(config, places, Ledger(places.folder, view, trackers), start)
        yield Launch(config, places, checked.installed.python, settings, start, mirror)


def _record(config: Config, folder: RunFolder, checked: _Checked, start: int, files: ProblemFiles) -> None:
    """The versions are those of the interpreter that has verl, where it is another."""
    gpu = f"{config.verl.ranks} for verl" if config.verl.device == "cuda" else None
    here = describe_launch(after_step=start, gpu=gpu, sandbox=checked.sandbox)
    launch = replace(here, versions={**here.versions, **checked.installed.versions})
    if folder.provenance.exists():
        record_resumption(folder.provenance, launch, files.digests, files.by_split)
    else:
        write_provenance(folder.provenance, Provenance(config.seed, files.digests, launch))
