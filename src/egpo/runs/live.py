"""A run on the screen: a panel that is redrawn on a terminal, one plain line a step anywhere else."""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from statistics import fmean
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from egpo.runs.health import Note
from egpo.runs.panel import panel
from egpo.runs.progress import Progress
from egpo.runs.readings import STEP_S, plain_line

_REFRESHES_PER_S = 4
_STEPS_FOR_ESTIMATE = 20


class LiveView:
    """Fed by any engine: it knows the names of metrics and nothing else.

    Live only on a real terminal: not in a pipe, not where `CI` is set, not on a dumb one. `NO_COLOR` is rich's.
    """

    def __init__(
        self,
        total_steps: int,
        title: str,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(highlight=False)
        self._clock = clock
        self._progress = Progress(total_steps, title)
        self._stage, self._stage_start = "", clock()
        self._last_show = clock()
        self._step_s: deque[float] = deque(maxlen=_STEPS_FOR_ESTIMATE)
        self._between_s, self._num_timed = 0.0, 0
        self._live = self._new_live() if _is_live(self._console) else None
        self.failure: str | None = None
        """Why nothing can be shown any more: a closed pipe (`| head`), a full device, a terminal that is gone."""

    def __enter__(self) -> "LiveView":
        self._last_show = self._clock()
        if self._live is not None:
            self._draw(self._live.start)
        else:
            self.say(self._progress.title)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stage = ""
        if self._live is not None:
            self._draw(self._live.stop)

    def stage(self, name: str) -> None:
        """What is being done now: `sample`, `judge`, ..."""
        self._stage, self._stage_start = name, self._clock()

    def show(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """A step that is done."""
        figures = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._time_step(step, timings)
        self._progress.add(step, figures, timings)
        if self._live is None:
            self.say(plain_line(step, self._progress.total_steps, figures, timings, self._progress.left_s))

    def note(self, note: Note) -> None:
        self._progress.notes.append(note)
        if self._live is None:
            self.say(str(note))

    def say(self, text: str) -> None:
        """A line above the panel, or in its turn."""
        self._draw(lambda: self._console.print(Text(text), soft_wrap=True))

    def _draw(self, draw: Callable[[], object]) -> None:
        """A screen that fails is not drawn to again: who trains decides what follows from `failure`, in good order."""
        if self.failure is not None:
            return
        try:
            draw()
        except (OSError, SystemExit) as error:  # rich leaves the interpreter when a pipe is closed
            cause = error.__context__ if isinstance(error, SystemExit) else error
            self.failure = getattr(cause, "strerror", None) or str(cause or "closed")
            with suppress(OSError, ValueError):  # what is left in the buffer must not fail again at the end
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._console.file.fileno())

    def _time_step(self, step: int, timings: Mapping[str, float]) -> None:
        """Time left: the steps to come, each as long as the last twenty on average, and what lies between two steps,
        such as a checkpoint now and then, on the average of all of them. Step 0 is no step. Before the first there is
        the loading, which does not come again."""
        elapsed, self._last_show = self._clock() - self._last_show, self._clock()
        if step > 0:
            own = timings.get(STEP_S, elapsed)
            self._between_s += max(0.0, elapsed - own) if self._step_s else 0.0
            self._step_s.append(own)
            self._num_timed += 1
            a_step = fmean(self._step_s) + self._between_s / self._num_timed
            self._progress.left_s = a_step * (self._progress.total_steps - step)

    def _new_live(self) -> Live:
        return Live(console=self._console, get_renderable=self._render, refresh_per_second=_REFRESHES_PER_S)

    def _render(self) -> RenderableType:
        return panel(self._progress, self._stage, self._clock() - self._stage_start)


def _is_live(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal and not os.environ.get("CI")
