"""Trains a recipe with verl: starts verl, follows it, and leaves no process behind."""

import secrets
import shlex
import signal
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from egpo.config import Config
from egpo.errors import EgpoError, RunInterruptedError, how_it_ended
from egpo.model_sources import display_name
from egpo.runs.ledger import OnStep, StepReport
from egpo.runs.live import LiveView, warnings_printed_by
from egpo.verl.launch.command import command
from egpo.verl.launch.mirror import VerlCheckpoints
from egpo.verl.launch.opening import Launch, open_launch
from egpo.verl.launch.processes import start
from egpo.verl.launch.refusals import ineffective_settings, refuse_what_verl_lacks
from egpo.verl.launch.watch import DeadProcess, Ending, LaunchMonitor, StopSignals, process_that_died, root_cause

USUAL_PATIENCE_MINUTES = {"cuda": 120.0, "cpu": 10.0}


class _ReportingView(LiveView):
    """A live view that also passes each finished step to a function."""

    def __init__(self, total_steps: int, title: str, on_step: OnStep | None, *, quiet: bool) -> None:
        super().__init__(total_steps, title, quiet=quiet)
        self._on_step, self._num_steps = on_step, total_steps

    def show(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        super().show(step, metrics, timings)
        if self._on_step is not None:
            self._on_step(StepReport(step, self._num_steps, dict(metrics), dict(timings)))


def train(
    config: Config,
    *,
    resume: bool = False,
    resume_from: int | None = None,
    on_step: OnStep | None = None,
    quiet: bool = False,
) -> Path:
    """Train for `config.steps` steps, and return the folder of the last checkpoint, for `egpo merge`.

    `resume` continues from the newest checkpoint, or from the start if there is none; `resume_from` continues from the
    checkpoint of that step. `on_step` is called after each step and cannot stop the run. `quiet` prints nothing.
    RunInterruptedError after a signal; EgpoError with the reason if verl fails or hangs.
    """
    refuse_what_verl_lacks(config)
    method, model = config.algorithm.estimator, display_name(config.model.path)
    title = f"{config.name}: {method} on {config.task.name}, from {model}, with verl"
    shown = _ReportingView(config.steps, title, on_step, quiet=quiet)
    with StopSignals() as stops, shown as view, nullcontext() if quiet else warnings_printed_by(view.say):
        for line in ineffective_settings(config):
            view.say(line)
        with open_launch(config, view, resume=resume, resume_from=resume_from) as launch:
            if launch.start >= config.steps:
                view.say(f"all {config.steps} steps are already done")
                return launch.places.folder.checkpoint_of(launch.start)
            log_start = launch.places.log.stat().st_size if launch.places.log.exists() else 0
            ending = _run(launch, view, stops)
            return _concluded(launch, ending, stops, view, log_start)


def _run(launch: Launch, view: LiveView, stops: StopSignals) -> Ending:
    config, launch_id = launch.config, secrets.token_hex(8)
    metrics = launch.places.metrics_of(launch_id)
    words = command(config, launch.settings, launch.python, metrics, launch_id, launch.host)
    view.stage("start verl")
    view.say(f"verl's own log: {launch.places.log}")
    verl = start(words, launch.places.log)
    patience = config.verl.patience_minutes or USUAL_PATIENCE_MINUTES[config.verl.device]
    return LaunchMonitor(verl, launch_id, launch.places, launch.mirror, view).until_it_ends(stops, patience * 60)


def _concluded(launch: Launch, ending: Ending, stops: StopSignals, view: LiveView, log_start: int) -> Path:
    folder = launch.places.folder
    saved = VerlCheckpoints(folder, launch.config.verl.ranks).choose(None)
    newest = f"the newest checkpoint is that of step {saved}" if saved else "there is no checkpoint yet"
    again = f"continue with: egpo train {shlex.quote(str(folder.config))} --resume"
    if view.failure is not None:
        what = f"standard output cannot be written ({view.failure}): stopped after step {launch.mirror.done}; {newest}"
        raise EgpoError(what, fix=again)
    if ending.kind == "stopped" or (stops.signum is not None and launch.mirror.done < launch.config.steps):
        what = f"stopped after step {launch.mirror.done}; {newest}"
        raise RunInterruptedError(stops.signum or 0, what, fix=again)
    if ending.kind == "exited" and ending.code == 0 and launch.mirror.done >= launch.config.steps:
        view.say(f"all {launch.config.steps} steps are done: {folder.checkpoint_of(saved)}")
        return folder.checkpoint_of(saved)
    dead = process_that_died(launch.places.log, log_start, ending)
    # Ray's error about a dead process has no more than its name, and a killed driver leaves no error.
    if (dead is None or ending.kind == "died") and ending.code != -signal.SIGKILL:
        view.say(root_cause(launch.places.log, log_start, ending.log_size))
    raise EgpoError(f"{_failure(launch, ending, dead)}; {newest}", where=str(launch.places.log), fix=again)


def _failure(launch: Launch, ending: Ending, dead: DeadProcess | None) -> str:
    done, outside = launch.mirror.done, "it crashed or was killed, for example because memory ran out"
    if dead is not None:
        return f"{dead} died after step {done} of {launch.config.steps}: {outside}"
    if ending.code < 0:
        return f"verl's driver {how_it_ended(ending.code)} after step {done} of {launch.config.steps}"
    if ending.kind == "stalled":
        minutes = launch.config.verl.patience_minutes or USUAL_PATIENCE_MINUTES[launch.config.verl.device]
        return f"verl was stopped: no step for {minutes:g} minutes after step {done} (verl.patience_minutes)"
    return f"verl {how_it_ended(ending.code)} after step {done} of {launch.config.steps}"
