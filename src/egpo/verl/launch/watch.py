"""Follows verl while it trains: records its metrics, tracks its processes, and stops it on a signal or a hang.

`StopSignals` receives signals: the first stops verl in order, a second one at once. `stage_of`, `root_cause` and
`process_that_died` read verl's log. `Roster` records which of verl's processes disappear. `LaunchMonitor` follows one
launch until it ends.
"""

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Literal

from egpo.errors import ERROR_PREFIX, NO_ERRORS, NOTICES, stop_signals
from egpo.processes.launches import LaunchedProcesses
from egpo.processes.table import (
    ProcessId,
    parent_of,
    process_id,
    process_title,
    remove_shared_memory,
    shared_memory_of,
)
from egpo.runs.live import LiveView
from egpo.verl.launch.layout import VerlPlaces
from egpo.verl.launch.mirror import MetricFeed, Mirror
from egpo.verl.launch.processes import launch_record


class StopSignals:
    """Receives stop signals during a `with` block. Nothing is raised.

    The launcher polls `signum`, the first signal, and `hurried`, which is true after a second one.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        """The first signal; None before it."""
        self.hurried = False
        """Whether a second signal came: then verl is stopped without waiting for anything."""
        self._before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    def __enter__(self) -> "StopSignals":
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


STAGES = {
    "Started a local Ray instance": "start Ray",
    "[validate_config] All": "start Ray",
    "dataset len:": "read data",
    "Total steps:": "load model",
    "init_process_group": "load model",
    "vLLM API server": "start vLLM",
    "Initializing a V1 LLM engine": "start vLLM",
    "Training Progress": "train",
}
"""Texts in verl's log, and the stage that begins when the text appears."""

_PREFIX = re.compile(r"^((\x1b\[[0-9;]*m)*\([\w:.]+[^()]*\bpid=\d+[^)]*\)(\x1b\[[0-9;]*m)* ?)+")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Died|Failure|Timeout)\b|^AssertionError")
_TRACEBACK = "Traceback (most recent call last):"
_CONSEQUENCES = ("ray.exceptions.", "RayTaskError", "KeyboardInterrupt", "SystemExit", "asyncio.exceptions.Cancelled")
_MOST_LINES, _LAST_LINES, _LONGEST_LINE = 24, 15, 400


def stage_of(line: str) -> str | None:
    """Return the stage that begins with this line of verl's log, or None."""
    return next((stage for words, stage in STAGES.items() if words in line), None)


def root_cause(log: Path, start: int = 0, end: int | None = None) -> str:
    """Return why verl ended, from the log between the bytes `start` and `end`.

    This is the first traceback that is not a consequence of another one; or what egpo printed; or the last lines.
    """
    with log.open("rb") as file:
        file.seek(start)
        lines = [
            _plain(line)
            for line in file.read(-1 if end is None else end - start).decode("utf-8", "replace").splitlines()
        ]
    tracebacks = list(_tracebacks(lines))
    first = [found for found in tracebacks if not found[-1].startswith(_CONSEQUENCES)]
    chosen = (first or tracebacks)[:1]
    if chosen:
        return "\n".join(chosen[0][-_MOST_LINES:])
    said = [line for line in lines if line.startswith(ERROR_PREFIX) and not line.startswith(NO_ERRORS)]
    # A line of verl's metrics has thousands of characters.
    return "\n".join(said or [line[:_LONGEST_LINE] for line in lines if line.strip()][-_LAST_LINES:])


ROLES = {
    "WorkerDict": "the trainer",
    "vLLMHttpServer": "a server of vLLM",
    "EngineCore": "an engine of vLLM",
    "TaskRunner": "verl's controller",
    "AgentLoopWorker": "which plays the prompts",
    "RewardLoopWorker": "which computes rewards",
    "TransferQueueController": "which keeps the batches",
    "SimpleStorageUnit": "which keeps the batches",
    "raylet": "Ray's daemon",
    "gcs_server": "Ray's head",
}
"""Beginnings of the names of verl's processes that live as long as the training, and what they do."""
_TITLE = re.compile(r"^(?:ray::|VLLM::|\S*/)?(\w+)")
_ACTOR_DIED = "ActorDiedError"
_DIED = re.compile(_ACTOR_DIED + r".*\n\s*class_name: (\S+)(?:\n(?!\s*pid:).*){0,3}\n\s*pid: (\d+)")
_DEAD_ENGINE = "EngineDeadError"


@dataclass(frozen=True)
class DeadProcess:
    """A process of verl that ended in mid-run: the name of its class or program, and its process id."""

    name: str
    pid: int

    def __str__(self) -> str:
        role = next((f", {what}," for beginning, what in ROLES.items() if self.name.startswith(beginning)), "")
        return f"process {self.pid} of verl ({self.name}{role.rstrip(',')})"


def process_that_died(log: Path, start: int, ending: "Ending") -> DeadProcess | None:
    """Return the process whose death ended verl; None if verl ended for another reason.

    This is the actor that Ray's first error names, or vLLM's engine if its server reports it dead, or a process that
    disappeared while verl continued.
    """
    with log.open("rb") as file:
        file.seek(start)
        text = file.read(ending.log_size - start).decode("utf-8", "replace")
    cause = root_cause(log, start, ending.log_size)
    named = _DIED.search("\n".join(_plain(line) for line in text.splitlines()))
    if named is not None and any(_RAISED.match(line) and _ACTOR_DIED in line for line in cause.splitlines()):
        return DeadProcess(named[1].rpartition(".")[2], int(named[2]))
    if _DEAD_ENGINE in cause:
        return next((one for one in ending.missing if one.name.startswith("EngineCore")), None)
    return ending.missing[0] if ending.kind == "died" else None


class Roster:
    """The processes of a launch that live as long as its training, by `ROLES`, and those that disappeared.

    A fork of a process has the same title, but does not count: verl's controller forks the workers of a data loader for
    every epoch and every validation, and they end with it.
    """

    def __init__(self) -> None:
        self._names: dict[ProcessId, str] = {}
        self._copies: set[ProcessId] = set()
        self.missing: list[DeadProcess] = []
        """In the order in which they disappeared."""
        self.missing_since = 0.0

    def note(self, alive: Collection[ProcessId]) -> None:
        """Compare with the processes that are alive now. A process is recognised by its title, which Ray sets late."""
        for one in set(self._names) - set(alive):
            if not self.missing:
                self.missing_since = time.monotonic()
            self.missing.append(DeadProcess(self._names.pop(one), one.pid))
        for one in set(alive) - self._copies:
            name = _name_of(one.pid)
            if name is None:
                continue
            if one not in self._names and name == _name_of(parent_of(one.pid)):
                self._copies.add(one)  # remembered, because it gets another parent if its own ends first
            else:
                self._names[one] = name

    def forget(self) -> None:
        """Forget the processes that disappeared: a step has finished without them."""
        self.missing = []


def _name_of(pid: int | None) -> str | None:
    """Return the name of a process by its title, if it is one of `ROLES`."""
    found = None if pid is None else _TITLE.match(process_title(pid))
    return found[1] if found is not None and found[1].startswith(tuple(ROLES)) else None


def _plain(line: str) -> str:
    """Return the line without colours and without Ray's prefix `(Worker pid=123)`."""
    return _COLOUR.sub("", _PREFIX.sub("", line)).rstrip()


def _tracebacks(lines: list[str]) -> Iterator[list[str]]:
    """Yield each traceback, up to the line that names the exception. Other processes may write in between."""
    for start, line in enumerate(lines):
        if line.lstrip().endswith(_TRACEBACK):
            indent = line.index(_TRACEBACK)
            body = [one[indent:] if not one[:indent].strip() else one for one in lines[start + 1 : start + 400]]
            end = next((place for place, one in enumerate(body) if _RAISED.match(one)), None)
            if end is not None:
                yield [_TRACEBACK, *body[: end + 1], *_continued(body[end + 1 :])]


def _continued(lines: list[str]) -> list[str]:
    """Return the further lines of an exception's message: those that are indented or start with `;`."""
    continued: list[str] = []
    for line in lines[:3]:
        if not line.startswith((" ", "\t", ";")):
            break
        continued.append(line)
    return continued


_LOOK_S, _PROCESSES_S = 0.5, 3.0
_GRACE_S = 60.0
"""Seconds that verl has to end by itself after one of its processes has died. It may wait for that process for ever."""
_FIGURES_S = 120.0
"""Seconds to wait after a signal for the metrics of a checkpoint that was just saved (verl may validate in between).
A run that is resumed from a checkpoint without metrics would have a gap in its curves."""


_Kind = Literal["exited", "stopped", "stalled", "died"]


@dataclass(frozen=True)
class Ending:
    """How verl ended: it `exited` with `code`, was `stopped` by a signal, `stalled` without a step for too long, or
    waited for one of its processes that had `died`.

    `log_size` is the length of the log at that time, in bytes: what verl prints while it is stopped is not the cause.
    `missing` are the processes that had disappeared by then.
    """

    kind: _Kind
    log_size: int
    code: int = 0
    missing: tuple[DeadProcess, ...] = ()


class LaunchMonitor:
    """A monitor of one launch of verl. However verl ends, none of its processes and shared memory is left."""

    def __init__(
        self, verl: subprocess.Popen[bytes], launch_id: str, places: VerlPlaces, mirror: Mirror, view: LiveView
    ) -> None:
        self._verl, self._launch_id, self._places, self._mirror, self._view = verl, launch_id, places, mirror, view
        self._feed = MetricFeed(places.metrics_of(launch_id))
        self._processes = LaunchedProcesses(launch_id, driver=process_id(verl.pid))
        self._roster = Roster()
        self._shared: set[str] = set()
        self._log = _LogTail(places.log)
        self._start = _Start(launch_id, places.starts)
        self._looked, self._asked = 0.0, 0.0
        self._logged_is_all = False
        """Whether every checkpoint had its metrics when verl was stopped: checkpoints that it saves later have none."""

    def until_it_ends(self, stops: StopSignals, patience_s: float) -> Ending:
        """Wait until verl ends, a signal comes, or no step finishes for `patience_s` seconds; record all metrics."""
        last_step = time.monotonic()
        try:
            while True:
                code = self._verl.poll()
                if num_new := self._mirror.take(self._feed.new()):
                    last_step = time.monotonic()
                    self._roster.forget()
                    self._read_log()
                    self._start.end(self._mirror.done + 1 - num_new)  # several steps may end between two looks
                if code is not None:
                    return self._ending("exited", code)
                if self._may_stop(stops) or self._view.failure is not None:
                    return self._ending("stopped")
                if time.monotonic() - last_step > patience_s:
                    return self._ending("stalled")
                if self._waits_for_the_dead():
                    return self._ending("died")
                self._look()
                time.sleep(_LOOK_S)
        finally:
            self._clean_up(stops)

    def _ending(self, kind: _Kind, code: int = 0) -> Ending:
        return Ending(kind, self._places.log.stat().st_size, code, tuple(self._roster.missing))

    def _waits_for_the_dead(self) -> bool:
        """Return whether a process died a while ago, and verl neither finishes a step without it nor ends."""
        return bool(self._roster.missing) and time.monotonic() - self._roster.missing_since > _GRACE_S

    def _may_stop(self, stops: StopSignals) -> bool:
        if stops.signum is None:
            return False
        if not self._mirror.awaits_figures:
            self._logged_is_all = True
            return True
        if not self._asked:
            self._asked = time.monotonic()
            self._view.say(
                "a step is saved but not logged yet: waiting for its metrics; send the signal again to stop at once"
            )
        return stops.hurried or time.monotonic() - self._asked > _FIGURES_S

    def _is_hurried(self, stops: StopSignals) -> bool:
        """Return whether a second signal came, and note new shared memory, which is removed after verl has ended."""
        self._shared |= shared_memory_of(self._processes.look())
        return stops.hurried

    def _read_log(self) -> None:
        for line in self._log.new():
            if stage := stage_of(line):
                self._view.stage(stage)
                self._start.take(stage)

    def _look(self) -> None:
        self._read_log()
        if time.monotonic() - self._looked > _PROCESSES_S:
            self._looked = time.monotonic()
            alive = self._processes.look()
            if self._mirror.is_training:
                self._roster.note(alive)
            self._shared |= shared_memory_of(alive)
            launch_record(self._launch_id, alive, self._shared).write(self._places.launch)

    def _clean_up(self, stops: StopSignals) -> None:
        self._view.stage("stop verl")
        self._processes.end(lambda: self._is_hurried(stops))
        self._verl.wait()
        remove_shared_memory(self._shared)
        self._mirror.take(self._feed.new())
        if self._logged_is_all:
            self._mirror.forget_unlogged_checkpoints()
        self._places.metrics_of(self._launch_id).unlink(missing_ok=True)
        self._places.launch.unlink(missing_ok=True)


class _Start:
    """The start-up of a launch: when each stage began, in seconds since verl was started. It is written to a file when
    the first step is recorded."""

    def __init__(self, launch_id: str, path: Path) -> None:
        self._launch_id, self._path = launch_id, path
        self._time, self._began = datetime.now(UTC), time.monotonic()
        self._stages: dict[str, float] = {}
        self._has_ended = False

    def take(self, stage: str) -> None:
        self._stages.setdefault(stage, self._seconds())

    def end(self, step: int) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        moment = self._time.isoformat(timespec="seconds")
        line = {
            "launch": self._launch_id,
            "time": moment,
            "stages": self._stages,
            "step": step,
            "seconds": self._seconds(),
        }
        # Training does not depend on it: the disk may be full.
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _seconds(self) -> float:
        return round(time.monotonic() - self._began, 2)


class _LogTail:
    """A reader of the lines that are added to a log after its construction."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = path.stat().st_size if path.exists() else 0

    def new(self) -> list[str]:
        with self._path.open("rb") as file:
            file.seek(self._position)
            text = file.read()
            self._position += len(text)
        return text.decode("utf-8", "replace").splitlines()
