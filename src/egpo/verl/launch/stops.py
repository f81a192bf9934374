"""SIGINT, SIGTERM and what terminals and schedulers send: the first ends verl in good order, a second one at once."""

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from egpo.runs.interruption import NOTICES, stop_signals


class Stops:
    """Listens while its `with` block lasts. Nothing is raised: the launcher looks here each time round."""

    def __init__(self) -> None:
        self.signum: int | None = None
        """The signal that came first; None while there was none."""
        self.hurried = False
        """Another one came: nobody is waited for."""
        self._before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    def __enter__(self) -> "Stops":
        self._before = {signum: signal.signal(signum, self._receive) for signum in stop_signals()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, before in self._before.items():
            signal.signal(signum, signal.SIG_DFL if before is None else before)

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        self.hurried = self.hurried or (self.signum is not None and signum not in NOTICES)
        self.signum = self.signum or signum
