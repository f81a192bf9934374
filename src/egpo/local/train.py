"""`train`: one RL run, from a recipe to the folder of the trained model."""

from contextlib import nullcontext
from pathlib import Path

from egpo.config import Config
from egpo.local.training.interrupts import Interrupts
from egpo.local.training.rl_session import TrainOpening
from egpo.local.training.session import complete
from egpo.model_sources import display_name
from egpo.runs.ledger import OnStep
from egpo.runs.live import LiveView, warnings_printed_by


def train(
    config: Config,
    *,
    resume: bool = False,
    resume_from: int | None = None,
    on_step: OnStep | None = None,
    quiet: bool = False,
) -> Path:
    """Train until `config.steps` steps are done, or `on_step` returns True. Return the folder of the trained model.

    `resume` continues from the newest checkpoint, or from the beginning if there is none. `resume_from` continues
    from the checkpoint of that step, and removes the results of later steps. A signal raises RunInterruptedError, after
    everything is saved. `quiet` prints nothing.
    """
    title = f"{config.name}: {config.algorithm.estimator} on {config.task.name}, from {display_name(config.model.path)}"
    view = LiveView(config.steps, title, quiet=quiet)
    with Interrupts() as interrupts, view, nullcontext() if quiet else warnings_printed_by(view.say):
        opening = TrainOpening(config, view, interrupts, on_step)
        return complete(opening, resume=resume, resume_from=resume_from)
