"""Worker processes that run math-verify and can be killed.

math-verify limits its time with `signal.alarm`, which works only in the main thread, and some answers never finish
without a limit. So it runs in processes of its own: started on first use, killed at their time limit, replaced when
they die. The limit is on processor time, so that a loaded machine gives the same verdicts as an idle one; the limit on
wall-clock time only ends a worker that gets almost no processor time. `shared_pool` is the pool that all callers in a
process share.
"""

import atexit
import os
import signal
import threading
import time
import weakref
from functools import partial
from pathlib import Path

from egpo.errors import EgpoError, InputError
from egpo.processes.workers import READY, IdleWorkers, Worker, not_started
from egpo.rewards.math.worker import SPENT, WALL_FACTOR
from egpo.waits import waiting

_WORKER = str(Path(__file__).with_name("worker.py"))
START_LIMIT_S = 60.0
MIN_MEMORY_MB = 512

FAILURES = {
    "checker_timeout": "math-verify exceeded its limit of processor time on this ground truth, and was killed",
    "checker_crashed": "math-verify crashed the worker process on this ground truth",
    "checker_stalled": "the worker process got too little processor time to finish, and was killed",
    "checker_died": "the worker process was killed from outside while it compared",
    "checker_memory": "math-verify came near its memory limit and did not find the answers equal",
    "checker_error": "math-verify raised an error of its own",
    "checker_unavailable": "no worker process could be started",
}
EXHAUSTED = ("checker_timeout", "checker_crashed", "checker_memory", "checker_error")
"""The failures that an answer can cause."""
_CRASHES = tuple(-number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL))


class MathPool:
    """A pool of at most `size` worker processes that compare math answers, each limited to `memory_mb` of memory.

    Any number of threads may call `compare` at the same time.
    """

    def __init__(self, size: int = 2, memory_mb: int = 1024) -> None:
        if size < 1 or memory_mb < MIN_MEMORY_MB:
            what = f"size {size} or memory_mb {memory_mb} is too small"
            raise InputError(what, where="MathPool", fix=f"give at least 1 worker and {MIN_MEMORY_MB} MB")
        self.size, self.memory_mb = size, memory_mb
        self._closed = False
        self._workers = IdleWorkers(lambda: start_worker(self.memory_mb))
        self._reset_limit()
        # In a forked child, the workers and the threads that hold the semaphore belong to the parent.
        os.register_at_fork(after_in_child=partial(_reset_limit_of, weakref.ref(self)))

    def _reset_limit(self) -> None:
        self._free = threading.BoundedSemaphore(self.size)

    def start(self) -> None:
        """Start a worker now and raise EgpoError if that fails, so that the error comes before a long run."""
        self._require_open()
        with self._free:
            self._workers.put_back(self._workers.take())

    def compare(self, gold: str, answer: str, timeout_s: float) -> str:
        """Return `same`, `different`, `unparsable`, `gold_unparsable`, or one of `FAILURES`.

        `timeout_s` limits the processor time of the worker for this comparison: neither waiting for a worker nor
        starting one counts. A worker that needs `WALL_FACTOR` times as much wall-clock time has stalled and is killed.
        """
        self._require_open()
        with self._free:
            try:
                worker = self._workers.take()
            except EgpoError:
                return "checker_unavailable"
            outcome = "checker_died"
            try:
                outcome = ask(worker, gold, answer, timeout_s)
            finally:
                # Also when this thread is interrupted: a worker that has not answered must not be used again.
                if outcome in FAILURES or outcome == SPENT:
                    worker.kill()
                else:
                    self._workers.put_back(worker)
        return "same" if outcome == SPENT else outcome

    def _require_open(self) -> None:
        if self._closed:
            raise EgpoError("the pool is closed", where="math reward", fix="create a new MathPool")

    def close(self) -> None:
        """End the idle workers now, and the busy ones when they have answered or reached their time limit."""
        self._closed = True
        self._workers.close()

    def __enter__(self) -> "MathPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _reset_limit_of(reference: "weakref.ref[MathPool]") -> None:
    pool = reference()
    if pool is not None:
        pool._reset_limit()


def start_worker(memory_mb: int) -> Worker:
    """Start a worker and return it when it is ready; EgpoError, with the worker's message, if it cannot start."""
    try:
        worker = Worker(_WORKER, str(memory_mb << 20), quiet=True)
    except OSError as error:
        raise _not_started(str(error)) from error
    try:
        with waiting("math worker", "a math-verify process to start", limit_s=START_LIMIT_S):
            greeting = worker.receive(time.monotonic() + START_LIMIT_S)
    except (EOFError, TimeoutError):
        greeting = f"no answer within {START_LIMIT_S:.0f} s"
    if greeting != READY:
        worker.kill()
        raise _not_started(greeting)
    return worker


def _not_started(why: str) -> EgpoError:
    return not_started(why, "math reward", "math_verify")


def ask(worker: Worker, gold: str, answer: str, timeout_s: float) -> str:
    """Let a worker compare an answer; return its reply, or a failure after which the worker must be killed."""
    deadline = time.monotonic() + WALL_FACTOR * timeout_s
    if not worker.send((gold, answer, timeout_s)):
        return "checker_died"
    try:
        with waiting("math worker", "a comparison by math-verify", limit_s=WALL_FACTOR * timeout_s):
            reply: str = worker.receive(deadline)
    except TimeoutError:
        return "checker_stalled"
    except EOFError:
        return _cause_of_death(worker.exit_status())
    return reply


def _cause_of_death(status: int | None) -> str:
    """Return the failure for an exit status: the worker's own limit of processor time, a crash, or an outside cause."""
    if status == -signal.SIGPROF:
        return "checker_timeout"
    return "checker_crashed" if status in _CRASHES else "checker_died"


_pool: MathPool | None = None
_lock = threading.Lock()


def shared_pool() -> MathPool:
    """Return the pool that all callers in this process share; a new one of two workers if none was set."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = MathPool()
        return _pool


def use_pool(pool: MathPool | None) -> None:
    """Set the pool that all callers share (None: a new one is made when needed), and close the previous one."""
    global _pool
    with _lock:
        before, _pool = _pool, pool
    if before is not None and before is not pool:
        before.close()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


atexit.register(use_pool, None)
# A fork may happen while another thread holds the lock; the child would wait for that thread for ever.
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew_lock)
