"""Handling of signals that end a run: SIGINT, SIGTERM, and those that terminals and schedulers send.

The first signal ends the run after its state is saved, a second one ends the process at once. A step that has not
changed the state yet is abandoned, and taken again on resume. An update under way is finished: half an update cannot be
saved.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from egpo.errors import NOTICES, STOPPING, RunInterruptedError, stop_signals
from egpo.local.checkpoints.checkpoint import Checkpoints
from egpo.runs.folder import RunFolder

SHOW_CURSOR = "\x1b[?25h"


class StepAbandoned(KeyboardInterrupt):
    """The error that ends a step before it changes any state.

    Not an Exception, so that `except Exception` misses it.
    """


class Interrupts:
    """A context manager that handles signals. Only the main thread gets signals: in another thread it does nothing."""

    def __init__(self) -> None:
        self.signum: int | None = None
        """The number of the first signal received, or None."""
        self._abandonable = False
        self._before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            self._before = {signum: signal.signal(signum, self._receive) for signum in stop_signals()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, before in self._before.items():
            # None: the earlier handler was not installed by Python, and cannot be restored.
            signal.signal(signum, signal.SIG_DFL if before is None else before)

    def allow_abandoning(self, allowed: bool) -> None:
        """Set whether a signal may abandon the current step.

        True: a signal raises StepAbandoned at once; if one was received before, this call raises it. False: a signal
        only sets `signum`, which the caller reads when the step is finished.
        """
        self._abandonable = allowed
        if allowed and self.signum is not None:
            raise StepAbandoned

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        # A second signal gets the default action, which ends the process at once, even inside a long kernel.
        for each in self._before:
            signal.signal(each, signal.SIG_IGN if each in NOTICES else signal.SIG_DFL)
        _print_now(STOPPING)
        if self._abandonable:
            self._abandonable = False
            raise StepAbandoned


def _print_now(text: str) -> None:
    """Write to the terminal directly: a signal handler may run in the middle of a print.

    Also show the cursor: the live view hides it, and a process that ends at once would not show it again.
    """
    cursor = SHOW_CURSOR if sys.stderr.isatty() else ""
    try:
        os.write(2, f"{cursor}{text}\n".encode())
    except OSError:
        return  # the terminal is gone


def interrupted(signum: int, folder: RunFolder, checkpoints: Checkpoints) -> RunInterruptedError:
    """Return the error for a run that a signal ended: the last saved step, and the command that continues the run."""
    if not folder.config.exists():
        return RunInterruptedError(signum, "stopped before the first step; nothing was written")
    steps = checkpoints.steps()
    done = f"after step {steps[-1]}, which is saved" if steps else "before the first step was done"
    return RunInterruptedError(signum, f"stopped {done}", fix=f"continue with: {checkpoints.command} --resume")
