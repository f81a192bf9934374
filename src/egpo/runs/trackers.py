"""Trackers, to which metrics are sent: TensorBoard, Weights & Biases, trackio and SwanLab.

Only the trackers that a recipe names are imported. Each is configured by its own environment variables
(`WANDB_MODE=offline`, `SWANLAB_MODE`, ...). To add a tracker: write a function that opens it, and add it to `OPENERS`.
"""

import os
import secrets
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from egpo.errors import NOTICES, USER_STOPS, InputError, nearest, warn_once
from egpo.files import write_atomically
from egpo.runs.folder import RunFolder
from egpo.runs.metrics import finite_figures

PROJECT = "egpo"


@dataclass(frozen=True)
class Tracker:
    """An opened tracker: its name, a function that logs a step, and a function that closes the tracker."""

    name: str
    log: Callable[[int, Mapping[str, float]], object]
    close: Callable[[], object]


@dataclass(frozen=True)
class TrackedRun:
    """The data about a run that a tracker receives. A resumed run keeps its `id`, so that its curve continues."""

    name: str
    id: str
    config: Mapping[str, Any]
    folder: RunFolder


class Trackers:
    """All trackers of a run. A tracker that fails during training causes a warning and is not used again."""

    def __init__(self, trackers: Iterable[Tracker]) -> None:
        self._trackers = list(trackers)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        figures = finite_figures(metrics)
        self._trackers = [one for one in self._trackers if _worked(one.name, partial(one.log, step, figures))]

    def close(self) -> None:
        for one in self._trackers:
            _worked(one.name, one.close)
        self._trackers = []


def open_trackers(names: Iterable[str], run_name: str, config: Mapping[str, Any], folder: RunFolder) -> Trackers:
    """Open trackers by name. Raise InputError if one is unknown, is not installed or cannot be opened."""
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name not in OPENERS:
            raise InputError(f"unknown tracker `{name}`", where="watch.trackers", fix=nearest(name, OPENERS))
    if not wanted:
        return Trackers([])
    run = TrackedRun(run_name, _run_id(folder), config, folder)
    return Trackers([_open(name, run) for name in wanted])


def _open(name: str, run: TrackedRun) -> Tracker:
    opened: list[Tracker] = []
    error = _failure(lambda: opened.append(OPENERS[name](run)))
    if isinstance(error, ImportError):
        fix = f"pip install {name}, or leave it out of watch.trackers"
        what = f"the tracker `{name}` is not installed ({error})"
        raise InputError(what, where="watch.trackers", fix=fix) from error
    if error is not None:
        fix = "fix the cause, use the tracker's offline mode, or leave it out of watch.trackers"
        what = f"the tracker `{name}` cannot be opened ({type(error).__name__}: {error})"
        raise InputError(what, where="watch.trackers", fix=fix) from error
    return opened[0]


def _worked(name: str, call: Callable[[], object]) -> bool:
    error = _failure(call)
    if error is not None:
        message = (
            f"the tracker `{name}` failed ({type(error).__name__}: {error}) and receives no more metrics; "
            "metrics.jsonl is complete"
        )
        warn_once(f"tracker {name}", message)
    return error is None


def _failure(call: Callable[[], object]) -> Exception | None:
    """Call a function of a tracker and return its exception, or None. Clients of trackers may raise anything."""
    try:
        with _signals_kept():
            call()
    except Exception as error:
        return error
    return None


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the run's signal handlers after the block: SwanLab installs its own."""
    kept = {number: signal.getsignal(number) for number in (*USER_STOPS, *NOTICES)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            if signal.getsignal(number) is not handler and handler is not None:
                signal.signal(number, handler)


def _run_id(folder: RunFolder) -> str:
    """Return the random id of the run, and create it if it has none: two runs of the same name are then two curves."""
    path = folder.trackers / "id.txt"
    if not path.exists():
        folder.trackers.mkdir(parents=True, exist_ok=True)
        write_atomically(path, secrets.token_hex(11)[:21] + "\n")  # SwanLab needs 21 characters
    return path.read_text(encoding="utf-8").strip()


def _tensorboard(run: TrackedRun) -> Tracker:
    # TensorBoard's own writer: torch's does the same but imports torch.
    from tensorboard.summary import Writer

    writer = Writer(str(run.folder.trackers / "tensorboard"))

    def log(step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return Tracker("tensorboard", log, writer.close)


def _wandb(run: TrackedRun) -> Tracker:
    import wandb

    opened = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=run.name,
        id=run.id,
        resume="allow",
        config=dict(run.config),
        dir=str(run.folder.trackers),
        settings=wandb.Settings(console="off"),  # otherwise wandb captures the output of the live view
    )
    return Tracker("wandb", lambda step, metrics: opened.log(dict(metrics), step=step), opened.finish)


def _trackio(run: TrackedRun) -> Tracker:
    import trackio

    opened = trackio.init(
        project=PROJECT, name=f"{run.name}-{run.id[:8]}", config=dict(run.config), resume="allow", embed=False
    )
    return Tracker("trackio", lambda step, metrics: opened.log(dict(metrics), step=step), trackio.finish)


def _swanlab(run: TrackedRun) -> Tracker:
    import swanlab

    opened = swanlab.init(
        project=PROJECT,
        name=run.name,
        id=run.id,
        resume="allow",
        config=dict(run.config),
        log_dir=str(run.folder.trackers / "swanlab"),
    )
    return Tracker("swanlab", lambda step, metrics: opened.log(dict(metrics), step=step), opened.finish)


OPENERS: dict[str, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "trackio": _trackio,
    "swanlab": _swanlab,
}
