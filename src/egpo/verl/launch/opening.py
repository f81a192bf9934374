"""Open a run on verl: check the machine and the recipe, write verl's data, translate the config to verl's settings.

The order of operations is that of every run (`egpo.runs.opening`).
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from egpo.benchmark_cases import cases_of_task, joined_cases, read_cases
from egpo.config import Config, config_to_yaml
from egpo.model_sources import origin_facts
from egpo.rewards.scoring import DATA_SOURCES, require_visible_tags
from egpo.runs.folder import RunFolder
from egpo.runs.ledger import NOTHING_YET, Ledger, rewind
from egpo.runs.live import LiveView
from egpo.runs.opening import LaunchProvenance, RunOpening, opened
from egpo.runs.provenance import describe_launch
from egpo.tasks import Dataset, load_task
from egpo.tasks.loading import sandbox_tier
from egpo.tasks.sourced import SourcedTask
from egpo.verl.episode_player import require_kept_history
from egpo.verl.launch.hosts import Host
from egpo.verl.launch.layout import VerlPlaces
from egpo.verl.launch.mirror import Mirror, VerlCheckpoints, adopt_figures, move_rollouts, recorded_steps
from egpo.verl.launch.preflight import (
    Installed,
    ask_interpreter,
    hardware_name,
    load_tokenizer,
    require_context,
    require_devices,
    require_free_gpus,
    require_free_ports,
    require_ray_cpus,
    require_verl,
    require_vllm_options,
)
from egpo.verl.launch.problems import MeasuredProblems, ProblemFiles, has_environment, measured_problems, write_problems
from egpo.verl.launch.processes import end_leftovers
from egpo.verl.launch.translation import Setting, model_place, translate


@dataclass(frozen=True, eq=False)
class Launch:
    """Everything needed to start verl. `settings` are verl's; the run continues after step `start`."""

    config: Config
    places: VerlPlaces
    python: str
    settings: list[Setting]
    start: int
    mirror: Mirror
    host: Host | None


@dataclass(frozen=True, eq=False)
class _Checked:
    """Objects that are loaded and checked before anything is written."""

    installed: Installed
    problems: MeasuredProblems
    sandbox: str | None


def run_folder(config: Config) -> RunFolder:
    return RunFolder(Path(config.runs) / config.name)


@contextmanager
def open_launch(config: Config, view: LiveView, *, resume: bool, resume_from: int | None) -> Iterator[Launch]:
    """Create or resume a run, and yield what is needed to start verl. Call `refuse_what_verl_lacks` first."""
    opening = VerlOpening(config, view)
    with opened(opening, resume=resume, resume_from=resume_from) as run:
        ledger = Ledger(opening.folder, view, run.trackers, config.watch.samples)
        mirror = Mirror(config, opening.places, ledger, run.start)
        python = run.loaded.installed.python
        yield Launch(config, opening.places, python, opening.settings, run.start, mirror, run.loaded.installed.host)


class VerlOpening(RunOpening[_Checked]):
    """The steps of opening a run on verl. A saved step may lack metrics: verl saves a step before it logs it."""

    allows_gaps = True

    def __init__(self, config: Config, view: LiveView) -> None:
        folder = run_folder(config)
        super().__init__(folder, VerlCheckpoints(folder, config.verl.ranks), config, config_to_yaml(config))
        self._config, self._view = config, view
        self.places = VerlPlaces(folder)
        self.settings: list[Setting] = []
        """verl's settings; empty until the data files, which they name, are written."""

    def clear_leftovers(self) -> None:
        left = end_leftovers(self.places)
        if left is not None:
            self._view.say(f"an earlier launcher of this run was killed: ended {left.num_processes} of its processes")
            adopt_figures(self.folder, left.metrics)
            self.places.launch.unlink()

    def read_checkpoint(self, step: int) -> None:
        if step not in recorded_steps(self.folder.metrics):
            self._view.say(f"step {step} was saved but not logged: its metrics are lost, the run continues after it")

    def load(self) -> _Checked:
        config = self._config
        self._view.stage("check")
        installed = ask_interpreter(config)
        require_verl(config, installed)
        require_devices(config, installed)
        require_vllm_options(config, installed.python)
        task = load_task(config.task.name, **config.task.settings)
        tokenizer = load_tokenizer(model_place(config.model.path))
        if has_environment(task):
            require_kept_history(tokenizer, config.rollout.episodes, config.model.template)
        if isinstance(task, SourcedTask | Dataset) and task.data_source in DATA_SOURCES:
            require_visible_tags(tokenizer, task.data_source, config.segments.tags)
        sandbox = sandbox_tier(task, config.task.settings)
        problems = measured_problems(config, self.places, task, tokenizer)
        self._require_room(problems.files, installed)
        return _Checked(installed, problems, sandbox)

    def _require_room(self, files: ProblemFiles, installed: Installed) -> None:
        """Raise InputError if the model, this machine or its GPUs have no room for the longest prompts."""
        config = self._config
        require_context(model_place(config.model.path), files.longest_prompt + config.rollout.max_response_tokens)
        settings = translate(config, self.places, files, host=installed.host)
        require_free_ports(settings)
        require_ray_cpus(config, settings)
        require_free_gpus(settings, installed)

    def describe(self, checked: _Checked, step: int) -> LaunchProvenance:
        """Write verl's data, translate the config, and describe the launch.

        Versions of packages are those of the interpreter that runs verl.
        """
        files = checked.problems.files
        self._view.stage("write data")
        write_problems(checked.problems, self.places.data)
        self.settings = translate(self._config, self.places, files, step, checked.installed.host)
        gpu = hardware_name(self._config, checked.installed)
        here = describe_launch(after_step=step, gpu=gpu, sandbox=checked.sandbox)
        launch = replace(here, versions={**here.versions, **checked.installed.versions})
        data = files.digests | origin_facts(model_place(self._config.model.path))
        cases = joined_cases(cases_of_task(checked.problems.task), read_cases(model_place(self._config.model.path)))
        return LaunchProvenance(launch, data, files.by_split, cases)

    def rewind(self, step: int) -> None:
        # In this order: a checkpoint must never be newer than the metrics.
        self.checkpoints.forget_after(step)
        # verl saves a step before it writes its rollouts and metrics: the last step before a kill may have a checkpoint
        # and rollouts that are not moved yet, but no metrics.
        move_rollouts(self.places)
        rewind(self.folder, step or NOTHING_YET, gaps=True)
        shutil.rmtree(self.places.rollouts, ignore_errors=True)
