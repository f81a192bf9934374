"""Hosts: they open the sessions of one environment, here or in worker processes, and run slow ones in threads.

`EnvironmentHost(name)` is made once for a run; `host.session(limits)` is a new instance for one rollout.
"""

import inspect
import os
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from egpo.environments.protocol import Environment, check_environment, method_schemas
from egpo.environments.session_workers import SessionWorker, WorkerSession, own_interpreter
from egpo.environments.sessions import LocalSession, Session
from egpo.environments.table import ENVIRONMENTS, absolute_name, load_environment, place_of_environment
from egpo.errors import InputError
from egpo.rewards.named import user_function

if TYPE_CHECKING:
    from egpo.environments.episodes import Episode, EpisodeLimits, EpisodeStart, TurnOutcome


class EnvironmentHost:
    """A host of one environment's sessions. Any thread may use it. Close it, or use it in a `with` statement.

    `environment`: a name in ENVIRONMENTS, `module:Class`, or a class. A class given as an object, for example of a
    notebook, runs in this process, where the seconds of a call have no limit. `settings`: arguments of the class's
    constructor. `reward`: a reward function in TRL's form, `module:function`, which gets the instance as
    `environments`; needed if the class has neither `verdict` nor `get_reward`. `num_workers`: the most worker processes
    (None: the number of cores).
    """

    def __init__(
        self,
        environment: str | type,
        settings: Mapping[str, Any] | None = None,
        *,
        reward: str | None = None,
        num_workers: int | None = None,
    ) -> None:
        self.settings, self.reward = dict(settings or {}), reward
        if isinstance(environment, str):
            self.name, self._kind = environment, load_environment(environment)
            self._place = place_of_environment(environment)
        else:
            self.name, self._kind = f"{environment.__module__}:{environment.__qualname__}", environment
            self._place = "waits"
            check_environment(environment, f"environment {self.name}")
        self._reward = None if reward is None else user_function(reward)
        self._num_workers = num_workers or os.cpu_count() or 1
        self._workers: list[SessionWorker] = []
        self._num_opened, self._lock = 0, threading.Lock()
        _require_settings(self._kind, self.name, self.settings)
        _require_verdict(self._kind, self.name, reward)

    @property
    def deterministic(self) -> bool:
        """Whether the same row and the same texts always give the same episode."""
        return bool(getattr(self._kind, "deterministic", True))

    @property
    def is_fast(self) -> bool:
        """Whether its sessions answer at once, in this process."""
        return self._place == "here"

    @property
    def checks_calls(self) -> bool:
        return bool(getattr(self._kind, "checks_calls", True))

    def session(self, limits: "EpisodeLimits") -> Session:
        """Return a new session, for one rollout. EgpoError if a worker process cannot be started."""
        if self._place != "worker":
            # An environment of the package that waits keeps the limits itself.
            own = (
                {"call_s": limits.call_s, "reset_s": limits.reset_s}
                if self.name in ENVIRONMENTS and self._place == "waits"
                else {}
            )
            return LocalSession(
                self._kind,
                {**own, **self.settings},
                self._reward,
                result_chars=limits.result_chars,
                is_fast=self.is_fast,
            )
        with self._lock:
            worker = self._chosen_worker()
            worker.num_sessions += 1
            self._num_opened += 1
            number = self._num_opened

        def on_close() -> None:
            with self._lock:
                worker.num_sessions -= 1
                if not worker.num_sessions and not worker.is_usable:
                    worker.kill()

        return WorkerSession(worker, f"{number}", limits, on_close)

    def _chosen_worker(self) -> SessionWorker:
        """Return the worker with the fewest sessions; start one if all are busy and there may be more."""
        self._workers = [worker for worker in self._workers if worker.is_usable or worker.num_sessions]
        usable = [worker for worker in self._workers if worker.is_usable]
        free = min(usable, key=lambda worker: worker.num_sessions, default=None)
        if free is not None and (not free.num_sessions or len(usable) >= self._num_workers):
            return free
        worker = SessionWorker(self._python(), self._spec())
        worker.wait_until_ready(f"environment {self.name}")
        self._workers.append(worker)
        return worker

    def _python(self) -> str:
        """Return the interpreter of the workers. A class of the package may name another than ours, and a file that
        serves its sessions there without egpo: `hosted_python` and `hosted_file`."""
        return str(getattr(self._kind, "hosted_python", own_interpreter)())

    def _spec(self) -> dict[str, Any]:
        if file := getattr(self._kind, "hosted_file", None):
            return {"file": str(file)}
        name = absolute_name(self.name)
        own_tools = issubclass(self._kind, Environment) and self._kind.tool_schemas is not Environment.tool_schemas
        schemas = None if own_tools else method_schemas(self._kind)
        hosted = {"name": name, "settings": self.settings, "reward": self.reward, "path": list(sys.path)}
        return {**hosted, "schemas": schemas}

    def close(self) -> None:
        """End the worker processes. Sessions that are still open have failed."""
        with self._lock:
            workers, self._workers = self._workers, []
        for worker in workers:
            worker.stop()

    def __enter__(self) -> "EnvironmentHost":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _require_settings(kind: type, name: str, settings: Mapping[str, Any]) -> None:
    """Raise InputError unless the constructor takes these settings. An outside class is not constructed here."""
    where = f"environment {name}"
    try:
        inspect.signature(kind).bind(**settings)
    except TypeError as error:
        takes = ", ".join(inspect.signature(kind).parameters) or "none"
        raise InputError(f"the settings do not fit ({error})", where=where, fix=f"it takes: {takes}") from error
    if name in ENVIRONMENTS:
        kind(**settings)


def _require_verdict(kind: type, name: str, reward: str | None) -> None:
    own = issubclass(kind, Environment) and kind.verdict is not Environment.verdict
    if not own and not hasattr(kind, "get_reward") and reward is None:
        what = f"the class `{kind.__qualname__}` gives no reward"
        fix = "add `get_reward(self) -> float` to it, or name a reward function"
        raise InputError(what, where=f"environment {name}", fix=fix)


class EpisodeThreads:
    """Threads in which episodes take their steps, so that one that waits for a tool does not hold up the others.

    The step of an episode that never waits is taken at once, in the caller's thread. The results do not depend on the
    order in which the steps end.
    """

    def __init__(self, num_threads: int = 64) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="episode")

    def start(self, episode: "Episode") -> "Future[EpisodeStart]":
        return self._threads.submit(episode.start) if not episode.is_fast else _done(episode.start())

    def assistant(
        self, episode: "Episode", text: str, cut_off: bool = False, *, opened: bool = False
    ) -> "Future[TurnOutcome]":
        if episode.is_fast:
            return _done(episode.assistant(text, cut_off, opened=opened))
        return self._threads.submit(episode.assistant, text, cut_off, opened=opened)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> "EpisodeThreads":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _done(value: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(value)
    return future
