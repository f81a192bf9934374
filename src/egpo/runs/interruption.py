"""A run that somebody asked to end: a user, a terminal that closes, a scheduler."""

import signal

from egpo.errors import EgpoError

REPEATABLE = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
"""The first ends a run in good order, the second at once."""
NOTICES = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""A terminal that closes, and a scheduler's warning before its time limit: they end a run in good order. They may come
several times (from the terminal and from its shell), so a further one does nothing."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """Those that end a run. What is ignored stays ignored: `nohup` has a run outlive its terminal."""
    free = (signum for signum in (signal.SIGQUIT, *NOTICES) if signal.getsignal(signum) != signal.SIG_IGN)
    return (signal.SIGINT, signal.SIGTERM, *free)


class RunInterruptedError(EgpoError):
    """The run has ended because somebody asked for it: exit code 128 and the signal's number (130 for
    SIGINT, 143 for SIGTERM), as shells expect."""

    def __init__(self, signum: int, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what, where=where, fix=fix)
        self.exit_code = 128 + signum
