"""SIGINT, SIGTERM and what terminals and schedulers send: the first ends the run in good order, a second one at once.

Until the update begins a step has changed nothing, so it is abandoned where it stands and taken again on resume. An
update under way is finished: half of one is no state to save.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from egpo.runs.interruption import NOTICES, stop_signals

SHOW_CURSOR = "\x1b[?25h"


class StepAbandoned(KeyboardInterrupt):
    """Raised out of a step that has changed nothing yet. No `except Exception` on the way may swallow it."""


class Interrupts:
    """Listens while its `with` block lasts. Signals reach the main thread only: in another it never hears one."""

    def __init__(self) -> None:
        self.signum: int | None = None
        """The signal that came; None while there was none."""
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
            # None: set by something other than Python, which cannot be put back.
            signal.signal(signum, signal.SIG_DFL if before is None else before)

    def allow_abandoning(self, allowed: bool) -> None:
        """True: from here on a signal raises StepAbandoned at once, and so does one that came before. False: from
        here on it waits; the caller looks at `signum` when it is done."""
        self._abandonable = allowed
        if allowed and self.signum is not None:
            raise StepAbandoned

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        # The default action ends the process in the middle of anything, a long kernel too.
        for each in self._before:
            signal.signal(each, signal.SIG_IGN if each in NOTICES else signal.SIG_DFL)
        _say("egpo: stopping in good order; once more to leave at once")
        if self._abandonable:
            self._abandonable = False
            raise StepAbandoned


def _say(text: str) -> None:
    """Straight to the terminal: a handler may run in the middle of a print. Leaving at once would not bring back the
    cursor that the live view hides."""
    cursor = SHOW_CURSOR if sys.stderr.isatty() else ""
    try:
        os.write(2, f"{cursor}{text}\n".encode())
    except OSError:
        return  # a terminal that is gone
