"""verl while it trains: its figures are taken over, its processes are known, and a hang is an end."""

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from egpo.runs.live import LiveView
from egpo.verl.launch.log_reader import stage_of
from egpo.verl.launch.metric_feed import MetricFeed
from egpo.verl.launch.mirror import Mirror
from egpo.verl.launch.places import VerlPlaces
from egpo.verl.launch.processes import LaunchedProcesses, identified, remove_shared_memory, shared_memory_of
from egpo.verl.launch.record import described
from egpo.verl.launch.stops import Stops

_LOOK_S, _PROCESSES_S = 0.5, 3.0
_FIGURES_S = 120.0
"""So long a run that is to stop may take from a checkpoint to its figures, with a validation in between; a run resumed
there would lack them."""


@dataclass(frozen=True)
class Ending:
    """`exited` by itself with `code`; `stopped` by a signal; `stalled` without a step for too long. `log_size`: how
    much verl had said by then; what it says when it is ended is no cause."""

    kind: Literal["exited", "stopped", "stalled"]
    log_size: int
    code: int = 0


class Watch:
    """One launch of verl. However the block ends, no process of it is left, and no shared memory."""

    def __init__(
        self, verl: subprocess.Popen[bytes], launch_id: str, places: VerlPlaces, mirror: Mirror, view: LiveView
    ) -> None:
        self._verl, self._launch_id, self._places, self._mirror, self._view = verl, launch_id, places, mirror, view
        self._feed = MetricFeed(places.metrics_of(launch_id))
        self._processes = LaunchedProcesses(launch_id, driver=identified(verl.pid))
        self._shared: set[str] = set()
        self._log = _LogTail(places.log)
        self._looked, self._asked = 0.0, 0.0
        self._logged_is_all = False
        """Whether every checkpoint had its figures when verl was told to end: what it saves after that has none."""

    def until_it_ends(self, stops: Stops, patience_s: float) -> Ending:
        """Blocks. Everything that verl wrote is taken over by then."""
        last_step = time.monotonic()
        try:
            while True:
                code = self._verl.poll()
                if self._mirror.take(self._feed.new()):
                    last_step = time.monotonic()
                if code is not None:
                    return self._ending("exited", code)
                if self._may_stop(stops) or self._view.failure is not None:
                    return self._ending("stopped")
                if time.monotonic() - last_step > patience_s:
                    return self._ending("stalled")
                self._look()
                time.sleep(_LOOK_S)
        finally:
            self._clean_up(stops)

    def _ending(self, kind: Literal["exited", "stopped", "stalled"], code: int = 0) -> Ending:
        return Ending(kind, self._places.log.stat().st_size, code)

    def _may_stop(self, stops: Stops) -> bool:
        if stops.signum is None:
            return False
        if not self._mirror.awaits_figures:
            self._logged_is_all = True
            return True
        if not self._asked:
            self._asked = time.monotonic()
            self._view.say(
                "a step is saved and not logged yet: its figures are waited for; the signal again ends it now"
            )
        return stops.hurried or time.monotonic() - self._asked > _FIGURES_S

    def _is_hurried(self, stops: Stops) -> bool:
        """Asked again and again while verl ends: weights under way take new shared memory to the last."""
        self._shared |= shared_memory_of(self._processes.look())
        return stops.hurried

    def _look(self) -> None:
        for line in self._log.new():
            if stage := stage_of(line):
                self._view.stage(stage)
        if time.monotonic() - self._looked > _PROCESSES_S:
            self._looked = time.monotonic()
            alive = self._processes.look()
            self._shared |= shared_memory_of(alive)
            described(self._launch_id, alive, self._shared).write(self._places.launch)

    def _clean_up(self, stops: Stops) -> None:
        self._view.stage("stop verl")
        self._processes.end(lambda: self._is_hurried(stops))
        self._verl.wait()
        remove_shared_memory(self._shared)
        self._mirror.take(self._feed.new())
        if self._logged_is_all:
            self._mirror.forget_unlogged_checkpoints()
        self._places.metrics_of(self._launch_id).unlink(missing_ok=True)
        self._places.launch.unlink(missing_ok=True)


class _LogTail:
    """New lines of the log, from where it stood."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = path.stat().st_size if path.exists() else 0

    def new(self) -> list[str]:
        with self._path.open("rb") as file:
            file.seek(self._position)
            text = file.read()
            self._position += len(text)
        return text.decode("utf-8", "replace").splitlines()
