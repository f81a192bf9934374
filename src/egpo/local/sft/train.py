"""`sft`: a supervised run from where it stands to its last step."""

from pathlib import Path

from egpo.config import SftConfig
from egpo.local.sessions.interrupts import Interrupts, StepAbandoned
from egpo.local.sessions.session import interrupted, take_steps
from egpo.local.sft.opening import new_session, resumed_session, sft_checkpoints, sft_folder


def sft(config: SftConfig, *, resume: bool = False, resume_from: int | None = None) -> Path:
    """Every epoch over the conversations. Returns the folder of the trained model.

    `resume` goes on from the newest checkpoint, or from the beginning where there is none; `resume_from` from that of
    a step, and forgets what came later. Ended by a signal it raises RunInterruptedError, with everything saved.
    """
    with Interrupts() as interrupts:
        try:
            interrupts.allow_abandoning(True)
            if resume or resume_from is not None:
                opened = resumed_session(config, resume_from, interrupts)
            else:
                opened = new_session(config, interrupts)
            with opened as session:
                return take_steps(session)
        except StepAbandoned:
            raise interrupted(interrupts.signum or 0, sft_folder(config), sft_checkpoints(config)) from None
