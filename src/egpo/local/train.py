"""`train`: one RL run, from a recipe to the folder of the trained model."""

from pathlib import Path

from egpo.config import Config
from egpo.local.training.interrupts import Interrupts
from egpo.local.training.rl_session import TrainOpening
from egpo.local.training.session import complete
from egpo.model_sources import display_name
from egpo.runs.live import LiveView, warnings_printed_by


def train(config: Config, *, resume: bool = False, resume_from: int | None = None) -> Path:
    """Train until `config.steps` steps are done. Return the folder of the trained model.

    `resume` continues from the newest checkpoint, or from the beginning where there is none. `resume_from` continues
    from the checkpoint of that step, and removes what came later. A signal raises RunInterruptedError, after everything
    is saved.
    """
    title = f"{config.name}: {config.algorithm.estimator} on {config.task.name}, from {display_name(config.model.path)}"
    with Interrupts() as interrupts, LiveView(config.steps, title) as view, warnings_printed_by(view.say):
        return complete(TrainOpening(config, view, interrupts), resume=resume, resume_from=resume_from)
