"""Run several experiments at the same time, each in its own process, on one machine or one GPU.

A small model leaves most of a GPU idle. Each experiment is an `egpo run` of its own. Its output goes to `output.log` in
its run folder, and the lines about its stages are printed with its name. What several experiments have in common (data,
cold start, probe, evaluation of the base model) is computed by one of them, and the others wait for it (`pipeline`).
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from egpo.errors import (
    ERROR_PREFIX,
    NO_ERRORS,
    NOTICES,
    EgpoError,
    Fault,
    RunInterruptedError,
    how_it_ended,
    stop_signals,
)
from egpo.experiments.experiment import Experiment
from egpo.experiments.screen import ProgressBar, Screen
from egpo.experiments.stages import STAGES, Selection
from egpo.processes.guarded import kill_session
from egpo.processes.launches import start_in_session

_LOOK_S = 0.2
_KILL_S = 10.0
"""Seconds after a second signal until the children that still run are killed."""
_LINES_KEPT = 40
_STAGE_LINES = tuple(f"  {name}:" for name in STAGES)
_RAISED = re.compile(r"(Fatal Python error|[\w.]*(Error|Exception|Interrupt|Exit))\b")
_WARNING = re.compile(r"(\S+:\d+: )?\w*warning: ", re.IGNORECASE)


class ExperimentsFailedError(EgpoError):
    """Some experiments of several failed: one fault each. The exit code is that of the first one."""

    def __init__(self, faults: Sequence[Fault], exit_code: int) -> None:
        Exception.__init__(self, "\n".join(map(str, faults)))
        self.faults, self.exit_code = list(faults), exit_code


def run_parallel(experiments: Sequence[Experiment], selection: Selection, processes: int, screen: Screen) -> None:
    """Run the experiments in child processes, at most `processes` at a time.

    A failed experiment does not stop the others; all failures are raised together at the end. A signal is passed on to
    the children, which save their state.
    """
    waiting = list(experiments)
    running: list[_Child] = []
    failed: list[_Child] = []
    num_steps = sum(experiment.config.steps for experiment in experiments)
    steps = {experiment.name: 0 for experiment in experiments}
    with screen.watched(f"{len(experiments)} experiments, {processes} at a time") as bar, _signals() as received:
        while (waiting and not received) or running:
            while waiting and len(running) < processes and not received:
                running.append(_start(waiting.pop(0), selection, processes, bar))
            if received:
                _pass_on(received, running, bar)
            for child in list(running):
                ended = child.process.poll() is not None
                _follow(child, bar)
                steps[child.name] = child.step
                if ended:
                    running.remove(child)
                    failed += [child] if child.process.returncode else []
                    bar.say(f"{child.name}: {child.ending}")
            bar.watch(sum(steps.values()), num_steps)
            time.sleep(_LOOK_S)
    if received:
        what = f"stopped; {len(waiting)} of {len(experiments)} experiments were not started"
        raise RunInterruptedError(received[0], what, fix="run the same command again to continue")
    if failed:
        raise ExperimentsFailedError([_fault(child) for child in failed], failed[0].exit_code)


@dataclass
class _Child:
    """One experiment in its process, and how far its output was read."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    read: int
    step: int = 0
    signalled: int = 0
    hurried_at: float | None = None
    lines: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        code = self.process.returncode
        return 128 - code if code < 0 else code

    @property
    def ending(self) -> str:
        return "finished" if not self.process.returncode else "stopped" if self.signalled else "failed"


def _start(experiment: Experiment, selection: Selection, processes: int, bar: ProgressBar) -> _Child:
    log = experiment.run.output
    log.parent.mkdir(parents=True, exist_ok=True)
    already = log.stat().st_size if log.is_file() else 0
    words = [
        sys.executable,
        "-m",
        "egpo",
        "run",
        experiment.recipe,
        *experiment.overrides,
        *_selected(selection),
        "--json",
    ]
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    # Threads that wait for work keep a core busy, so the children share the cores.
    variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads), "PYTHONUNBUFFERED": "1"}
    bar.say(f"{experiment.name}: started, output in {log}")
    return _Child(experiment.name, start_in_session(words, variables, log), log, already)


def _selected(selection: Selection) -> list[str]:
    """Return the options of `egpo run` that select the same stages."""
    kept = [] if selection.keep == "all" else ["--keep", selection.keep]
    if selection.again:
        return ["--from", selection.stages[0].name, *kept]
    return ["--only", ",".join(stage.name for stage in selection.stages), *kept]


def _follow(child: _Child, bar: ProgressBar) -> None:
    """Read the new lines of a child's log: note the training step, and print what is said about stages."""
    with child.log.open("rb") as log:
        log.seek(child.read)
        text = log.read()
    whole = text[: text.rfind(b"\n") + 1]
    child.read += len(whole)
    for line in whole.decode("utf-8", "backslashreplace").splitlines():
        step = _step_of(line)
        if step is not None:
            child.step = step
        elif line.strip():
            child.lines = [*child.lines, line.rstrip()][-_LINES_KEPT:]
            if line.startswith(_STAGE_LINES):  # not a warning's source line, or a sign of life
                bar.say(f"{child.name}: {line.strip()}")


def _step_of(line: str) -> int | None:
    """Return the number of the training step that a line of JSON reports; None for any other line."""
    if not line.startswith('{"step"'):
        return None
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError):
        return None


def _fault(child: _Child) -> Fault:
    what = ": ".join([how_it_ended(child.process.returncode), *_cause(child.lines)])
    return Fault(what, child.name, f"its output is in {child.log}")


def _cause(lines: Sequence[str]) -> list[str]:
    """Return the line of a child's last lines that says why it ended; no line if none does.

    An error of ours is printed as lines with a prefix, the cause first. Of a crash it is the last exception that is
    named, and otherwise the last line that is no notice, no warning and not indented as source lines are.
    """
    said = [line for line in lines if not line.startswith((*NO_ERRORS, " ")) and not _WARNING.match(line)]
    ours = [line.removeprefix(ERROR_PREFIX) for line in said if line.startswith(ERROR_PREFIX)]
    return ours[:1] or [line for line in said if _RAISED.match(line)][-1:] or said[-1:]


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect the signals that end a run during the block."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def receive(signum: int, frame: FrameType | None) -> None:
        received.append(signum)

    before = {signum: signal.signal(signum, receive) for signum in stop_signals()}
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)


def _pass_on(received: Sequence[int], running: Sequence[_Child], bar: ProgressBar) -> None:
    """Send every child the signals that it has not got yet: the first one saves, a second one ends at once.

    A child that does not end then, because it was suspended for example, is killed.
    """
    for child in running:
        if not child.signalled:
            bar.say(f"{child.name}: stopping after saving; send the signal again to stop at once")
        if child.hurried_at is not None and time.monotonic() - child.hurried_at > _KILL_S:
            kill_session(child.process.pid, with_leader=True)
        elif child.hurried_at is None and any(signum not in NOTICES for signum in received[1:]):
            child.hurried_at = time.monotonic()
        for signum in received[child.signalled :]:
            with suppress(ProcessLookupError):
                child.process.send_signal(signum)
        child.signalled = len(received)
