"""Lines on a screen that would otherwise stay silent: what is being done, and for how long already.

A model that loads for a minute, or a step of several minutes, gives no output in a log file. `Heartbeat` prints a line
whenever nothing was printed for `PERIOD_S` seconds.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType

PERIOD_S = 15.0
"""Seconds of silence after which a line is printed."""


class Heartbeat:
    """A thread that prints a line after `period_s` seconds without output, until the `with` block ends.

    `spoke()` tells it that a line was printed. `doing` is the text of its lines, and may be changed at any time.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        doing: str = "working",
        *,
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self.doing, self._period_s, self._clock = say, doing, period_s, clock
        self._last = self._start = clock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="egpo heartbeat", daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._last = self._start = self._clock()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Print no more lines."""
        self._end.set()
        self._thread.join()

    def spoke(self) -> None:
        """Note that a line was printed now."""
        self._last = self._clock()

    def _beat(self) -> None:
        while not self._end.wait(min(1.0, self._period_s)):
            if self._clock() - self._last >= self._period_s:
                self.spoke()
                try:
                    self._say(f"{self.doing}, {self._clock() - self._start:.0f} s")
                except (OSError, ValueError, SystemExit):  # a closed pipe or file: the main thread reports it
                    return
