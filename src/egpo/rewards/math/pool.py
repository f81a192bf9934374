"""Worker processes that run math-verify and can be killed.

math-verify limits its time with `signal.alarm`, which fails off the main thread, and some answers never come back
without a limit. So it runs in processes of its own, started lazily, killed when they are late, replaced when they die.
The limit is on processor time, so that a loaded machine judges as an idle one does; the wall clock only ends a worker
that hardly gets to run.
They are new interpreters, not forks: a fork of a process with torch's threads in it may hang.

The pool that every caller in a process shares, made when it is first asked for.
"""

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from functools import partial
from pathlib import Path

from egpo.errors import EgpoError, InputError
from egpo.rewards.math.worker import READY, WALL_FACTOR

WORKER = Path(__file__).with_name("worker.py")
START_LIMIT_S = 60.0
_EXIT_LIMIT_S = 5.0
"""From the end of a worker's output to its exit."""
MIN_MEMORY_MB = 512

FAILURES = {
    "checker_timeout": "math-verify did not finish within its processor time, for this ground truth, and was killed",
    "checker_crashed": "math-verify crashed the worker process, for this ground truth",
    "checker_stalled": "the worker process got too little processor time to finish, and was killed",
    "checker_died": "the worker process was killed from outside while it compared",
    "checker_memory": "math-verify came near its memory limit and did not find the answer right",
    "checker_error": "math-verify raised an error of its own",
    "checker_unavailable": "no worker process could be started",
}
EXHAUSTED = ("checker_timeout", "checker_crashed", "checker_memory", "checker_error")
"""Those of the failures that an answer can bring about."""
_CRASHES = tuple(-number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL))
_SPENT = "same_and_spent"
_REPLIES = ("same", _SPENT, "different", "unparsable", "gold_unparsable", "checker_memory", "checker_error")


class _Worker:
    """One process, and the pipes to it. Used by one thread at a time."""

    def __init__(self, memory_mb: int) -> None:
        # -P: the folder of the script stays off sys.path, where its neighbours could hide the standard library.
        # A session of its own: Ctrl-C at the terminal is the parent's business.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER), str(os.getpid()), str(memory_mb << 20)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._replies = self._process.stdin, self._process.stdout

    def read_line(self, deadline: float) -> str | None:
        """The next line; "" where the stream ends first; None at the deadline."""
        line = b""
        poll = select.poll()  # not select.select, which refuses file descriptors over 1023
        poll.register(self._replies, select.POLLIN)
        while not line.endswith(b"\n"):
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None
            chunk = os.read(self._replies.fileno(), 4096)
            if not chunk:
                return ""
            line += chunk
        return line.decode("ascii", "replace").strip()

    def ask(self, gold: str, answer: str, timeout_s: float) -> str:
        """One of the replies, or a failure after which this worker is of no more use."""
        request = json.dumps({"gold": gold, "answer": answer, "timeout_s": timeout_s}) + "\n"
        deadline = time.monotonic() + WALL_FACTOR * timeout_s
        try:
            self._requests.write(request.encode("ascii"))
        except OSError:
            return "checker_died"
        reply = self.read_line(deadline)
        if reply is None:
            return "checker_stalled"
        return reply if reply in _REPLIES else self._cause_of_death()

    def _cause_of_death(self) -> str:
        """What ended a worker that has closed its pipe: its own limit of processor time, a crash, or someone else."""
        try:
            status = self._process.wait(_EXIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            return "checker_died"
        if status == -signal.SIGPROF:
            return "checker_timeout"
        return "checker_crashed" if status in _CRASHES else "checker_died"

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._requests.close()
        self._replies.close()


def _start(memory_mb: int) -> _Worker:
    """A worker that has said that it is ready; EgpoError with what it said instead."""
    try:
        worker = _Worker(memory_mb)
    except OSError as error:
        raise _not_started(str(error)) from error
    greeting = worker.read_line(time.monotonic() + START_LIMIT_S)
    if greeting != READY:
        worker.kill()
        raise _not_started(greeting or f"no sign of life within {START_LIMIT_S:.0f} s")
    return worker


def _not_started(why: str) -> EgpoError:
    return EgpoError(
        f"a worker process did not start: {why}",
        where="math reward",
        fix=f"`{sys.executable} -c 'import math_verify'` should succeed",
    )


def _forget_workers_of(reference: "weakref.ref[MathPool]") -> None:
    pool = reference()
    if pool is not None:
        pool._forget_workers()


class MathPool:
    """At most `size` workers of at most `memory_mb` each. Any number of threads may ask at once."""

    def __init__(self, size: int = 2, memory_mb: int = 1024) -> None:
        if size < 1 or memory_mb < MIN_MEMORY_MB:
            what, fix = f"size {size}, memory_mb {memory_mb}", f"at least 1 worker, of at least {MIN_MEMORY_MB} MB"
            raise InputError(what, where="MathPool", fix=fix)
        self.size, self.memory_mb = size, memory_mb
        self._closed = False
        self._forget_workers()
        # A fork shares the pipes of its parent, and perhaps a held lock: it forgets them and starts workers of its own.
        os.register_at_fork(after_in_child=partial(_forget_workers_of, weakref.ref(self)))

    def _forget_workers(self) -> None:
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(self.size)

    def start(self) -> None:
        """Start a worker now, and raise EgpoError where that fails: for the moment before a long run."""
        self._refuse_when_closed()
        with self._free:
            self._put_back(self._take())

    def compare(self, gold: str, answer: str, timeout_s: float) -> str:
        """`same`, `different`, `unparsable`, `gold_unparsable`, or one of `FAILURES`.

        The limit is processor time of the worker, from the moment that it is free and ready: neither a queue nor a
        start eats it up. After `WALL_FACTOR` times as long by the clock, the worker has stalled.
        """
        self._refuse_when_closed()
        with self._free:
            try:
                worker = self._take()
            except EgpoError:
                return "checker_unavailable"
            outcome = "checker_died"
            try:
                outcome = worker.ask(gold, answer, timeout_s)
            finally:
                # Also when this thread is interrupted: a worker that owes an answer must not meet the next question.
                if outcome in FAILURES or outcome == _SPENT:
                    worker.kill()
                else:
                    self._put_back(worker)
        return "same" if outcome == _SPENT else outcome

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise EgpoError("the pool is closed", where="math reward", fix="make another MathPool")

    def _take(self) -> _Worker:
        """An idle worker that is still alive, or a new one."""
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            if worker is None:
                return _start(self.memory_mb)
            if worker.is_alive():
                return worker
            worker.kill()

    def _put_back(self, worker: _Worker) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(worker)
                return
        worker.kill()

    def close(self) -> None:
        """End the idle workers now, and the busy ones when they have answered or are late."""
        with self._lock:
            self._closed, idle, self._idle = True, self._idle, []
        for worker in idle:
            worker.kill()

    def __enter__(self) -> "MathPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_pool: MathPool | None = None
_lock = threading.Lock()


def shared_pool() -> MathPool:
    """The pool in use; one of two workers where none was set."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = MathPool()
        return _pool


def use_pool(pool: MathPool | None) -> None:
    """Share this pool from now on (None: a new one, when it is needed), and close the one before."""
    global _pool
    with _lock:
        before, _pool = _pool, pool
    if before is not None and before is not pool:
        before.close()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


atexit.register(use_pool, None)
# A fork may happen while another thread holds the lock, and would wait for that thread for ever.
os.register_at_fork(after_in_child=_renew_lock)
