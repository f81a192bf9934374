"""`train`: a run from where it stands to its last step."""

from pathlib import Path

from egpo.config import Config
from egpo.local.training.opening import new_session, resumed_session, run_checkpoints, run_folder
from egpo.local.training.session import Interrupts, StepAbandoned, interrupted, take_steps
from egpo.runs.live import LiveView, warnings_printed_by


def train(config: Config, *, resume: bool = False, resume_from: int | None = None) -> Path:
    """Sample, judge, learn, until `config.steps` steps are done. Returns the folder of the trained model.

    `resume` goes on from the newest checkpoint, or from the beginning where there is none; `resume_from` from that of
    a step, and forgets what came later. Ended by a signal it raises RunInterruptedError, with everything saved.
    """
    title = f"{config.name}: {config.algorithm.estimator} on {config.task.name}, from {config.model.path}"
    with Interrupts() as interrupts, LiveView(config.steps, title) as view, warnings_printed_by(view.say):
        try:
            interrupts.allow_abandoning(True)
            if resume or resume_from is not None:
                opened = resumed_session(config, resume_from, view, interrupts)
            else:
                opened = new_session(config, view, interrupts)
            with opened as session:
                return take_steps(session)
        except StepAbandoned:
            raise interrupted(interrupts.signum or 0, run_folder(config), run_checkpoints(config)) from None
