"""Trackers, to which metrics and sample responses are sent: TensorBoard, Weights & Biases, trackio, SwanLab and MLflow.

Only the trackers that a recipe names are imported. Each is configured by its own environment variables
(`WANDB_MODE=offline`, `MLFLOW_TRACKING_URI`, ...). To add a tracker: write a function that opens it, and add it to
`OPENERS`, and its name to `TrackerName` in `egpo.config.sections.training`.
"""

import os
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from egpo.errors import InputError, nearest, warn_once
from egpo.files import write_atomically
from egpo.runs.folder import RunFolder
from egpo.runs.metrics import finite_figures
from egpo.runs.sample_table import SampleTable
from egpo.waits import waiting

PROJECT = "egpo"
SAMPLES = "samples"
"""Name of the table of sample responses."""
OPEN_S, LOG_S, CLOSE_S = 120.0, 60.0, 300.0
"""Seconds that a tracker has to open, to take a step, and to close: its server may accept a connection and then never
answer."""


@dataclass(frozen=True)
class Tracker:
    """An opened tracker: its name, a function that logs a step, and a function that closes the tracker.

    `log_samples` sends a table of sample responses; it is None if the tracker shows no tables. `caller` calls them.
    """

    name: str
    log: Callable[[int, Mapping[str, float]], object]
    close: Callable[[], object]
    log_samples: Callable[[int, SampleTable], object] | None = None
    caller: "_Caller" = field(default_factory=lambda: _Caller(), compare=False)


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
        self._trackers = [one for one in self._trackers if _worked(one, partial(one.log, step, figures), LOG_S)]

    def log_samples(self, step: int, table: SampleTable) -> None:
        """Send a table to the trackers that show tables. One that fails gets no further tables, but still metrics."""
        if table.rows:
            self._trackers = [_after_samples(one, step, table) for one in self._trackers]

    def close(self) -> None:
        for one in self._trackers:
            _worked(one, one.close, CLOSE_S)
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
    caller = _Caller()
    error = caller.call(lambda: opened.append(OPENERS[name](run)), name, OPEN_S)
    if isinstance(error, ImportError):
        fix = f"pip install {name}, or leave it out of watch.trackers"
        what = f"the tracker `{name}` is not installed ({error})"
        raise InputError(what, where="watch.trackers", fix=fix) from error
    if error is not None:
        fix = "fix the cause, use the tracker's offline mode, or leave it out of watch.trackers"
        what = f"the tracker `{name}` cannot be opened ({type(error).__name__}: {error})"
        raise InputError(what, where="watch.trackers", fix=fix) from error
    return replace(opened[0], caller=caller)


def _worked(one: Tracker, call: Callable[[], object], limit_s: float) -> bool:
    error = one.caller.call(call, one.name, limit_s)
    if error is not None:
        message = (
            f"the tracker `{one.name}` failed ({type(error).__name__}: {error}) and receives no more metrics; "
            "metrics.jsonl is complete"
        )
        warn_once(f"tracker {one.name}", message)
    return error is None


def _after_samples(one: Tracker, step: int, table: SampleTable) -> Tracker:
    if one.log_samples is None:
        return one
    error = one.caller.call(partial(one.log_samples, step, table), one.name, LOG_S)
    if error is None:
        return one
    said = f"({type(error).__name__}: {error})"
    message = f"the tracker `{one.name}` did not take the table of samples {said} and receives no more tables"
    warn_once(f"samples {one.name}", f"{message}; rollouts/ is complete")
    return replace(one, log_samples=None)


class _Caller:
    """Calls the functions of one tracker, all in one thread of its own, which is left alone if it hangs.

    Outside of the main thread no client can replace the run's signal handlers; SwanLab would.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], object], name: str, limit_s: float) -> Exception | None:
        """Call a function and return its exception, or None. TimeoutError if it takes longer than `limit_s` seconds."""
        failures: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        try:
            self._start_thread()
        except RuntimeError as error:  # no thread can be started: clients of trackers need threads, too
            return error
        self._calls.put(lambda: failures.put(_failure(function)))
        try:
            with waiting("tracker", f"the tracker `{name}`", limit_s=limit_s):
                return failures.get(timeout=limit_s)
        except queue.Empty:
            return TimeoutError(f"no answer within {limit_s:g} s")

    def _start_thread(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=_work, args=(self._calls,), name="egpo tracker", daemon=True)
            thread.start()
            self._thread = thread

    def __del__(self) -> None:
        self._calls.put(_end_thread)


def _work(calls: "queue.SimpleQueue[Callable[[], None]]") -> None:
    while (call := calls.get()) is not _end_thread:
        call()


def _end_thread() -> None:
    pass


def _failure(call: Callable[[], object]) -> Exception | None:
    """Call a function of a tracker and return its exception, or None. Clients of trackers may raise anything."""
    try:
        call()
    except Exception as error:
        return error
    except BaseException as error:  # such as SystemExit, which would end the thread without an answer
        return RuntimeError(f"{type(error).__name__}: {error}")
    return None


def _run_id(folder: RunFolder) -> str:
    """Return the random id of the run; create it if there is none. With it, trackers distinguish runs of one name."""
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

    def log_samples(step: int, table: SampleTable) -> None:
        shown = wandb.Table(columns=list(table.columns), data=[list(row) for row in table.rows])
        opened.log({SAMPLES: shown}, step=step)

    return Tracker("wandb", lambda step, metrics: opened.log(dict(metrics), step=step), opened.finish, log_samples)


def _trackio(run: TrackedRun) -> Tracker:
    import trackio

    opened = trackio.init(
        project=PROJECT, name=f"{run.name}-{run.id[:8]}", config=dict(run.config), resume="allow", embed=False
    )

    def log_samples(step: int, table: SampleTable) -> None:
        shown = trackio.Table(columns=list(table.columns), data=[list(row) for row in table.rows])
        opened.log({SAMPLES: shown}, step=step)

    return Tracker("trackio", lambda step, metrics: opened.log(dict(metrics), step=step), trackio.finish, log_samples)


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


_ID_TAG = "egpo.run_id"
_MOST_PARAMS = 100
"""Parameters that MLflow takes in one request."""
_LONGEST_PARAM = 500
_NOT_IN_MLFLOW_NAMES = re.compile(r"[^\w/.\- :]")


def _mlflow(run: TrackedRun) -> Tracker:
    # The client, not `mlflow.start_run`: an active run is global, and a notebook may have its own.
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    client = MlflowClient()
    run_id = _mlflow_run(client, run)

    def log(step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        client.log_batch(run_id, [Metric(mlflow_name(name), value, now, step) for name, value in metrics.items()])

    def log_samples(step: int, table: SampleTable) -> None:
        columns = zip(*table.rows, strict=True)
        data = {name: list(values) for name, values in zip(table.columns, columns, strict=True)}
        client.log_table(run_id, data, artifact_file=f"{SAMPLES}/step_{step}.json")

    return Tracker("mlflow", log, lambda: client.set_terminated(run_id), log_samples)


def _mlflow_run(client: Any, run: TrackedRun) -> str:
    """Return the id of the MLflow run that has this run's tag; a new one if there is none."""
    experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
    known = client.get_experiment_by_name(experiment)
    experiment_id = client.create_experiment(experiment) if known is None else known.experiment_id
    if found := client.search_runs([experiment_id], f"tags.`{_ID_TAG}` = '{run.id}'", max_results=1):
        opened = str(found[0].info.run_id)
        client.update_run(opened, status="RUNNING")
        return opened
    opened = str(client.create_run(experiment_id, tags={_ID_TAG: run.id}, run_name=run.name).info.run_id)
    _log_params(client, opened, run.config)
    return opened


def _log_params(client: Any, run_id: str, config: Mapping[str, Any]) -> None:
    """Log each setting under its dotted key. MLflow refuses another value later: a resumed run does not call this."""
    from mlflow.entities import Param

    params = [Param(mlflow_name(key), str(value)[:_LONGEST_PARAM]) for key, value in _leaves(config)]
    for start in range(0, len(params), _MOST_PARAMS):
        client.log_batch(run_id, params=params[start : start + _MOST_PARAMS])


def _leaves(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            yield from _leaves(inner, f"{before}{key}.")
        else:
            yield f"{before}{key}", inner


def mlflow_name(name: str) -> str:
    """Return the name with `_` for each character that MLflow refuses, such as the `@` of `mean@8`."""
    return _NOT_IN_MLFLOW_NAMES.sub("_", name)


OPENERS: dict[str, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "trackio": _trackio,
    "swanlab": _swanlab,
    "mlflow": _mlflow,
}
