"""Python worker processes that answer messages over a socket.

A worker is a new interpreter: a fork of a process that has threads may hang, and `multiprocessing` would run the
caller's main module again, which fails in a notebook and in a script without a main guard. A worker runs in a session
of its own, so that Ctrl-C at the terminal reaches only the parent. It ends when the parent closes the socket or ends.

Parent: `worker = Worker("package.module", ...)`, `worker.send(...)`, `worker.receive(deadline)`, `worker.kill()`.
Worker: `serve(parent, *arguments)` in that module, with `for message in parent.messages()`.
"""

import os
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from egpo.errors import EgpoError

READY = "ready"
"""The first message of a worker that is ready for work. Any other text is the reason why the worker cannot start."""
_PARENT_CHECK_S = 5.0
_EXIT_LIMIT_S = 5.0
"""Seconds that a worker has to exit after its connection has closed."""
_RUN = """
import sys
fd, parent, module, num_arguments = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
arguments, sys.path[:] = sys.argv[5:5 + num_arguments], sys.argv[5 + num_arguments:]
from egpo.processes.workers import Parent, load
load(module).serve(Parent(fd, parent), *arguments)
"""


def load(module: str) -> Any:
    """Import a module by name, or run the file at a path without importing the packages around it."""
    if not module.endswith(".py"):
        return import_module(module)
    spec = spec_from_file_location("worker", module)
    assert spec is not None
    assert spec.loader is not None
    loaded = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


class Parent:
    """The connection from a worker process to the process that started it, as the worker uses it."""

    def __init__(self, fd: int, pid: int) -> None:
        # A process that the worker starts must not keep the connection open after the worker has died.
        os.set_inheritable(fd, False)
        self._connection, self._pid = Connection(fd), pid

    def send(self, message: Any) -> None:
        self._connection.send(message)

    def messages(self) -> Iterator[Any]:
        """Yield the messages of the parent, until the parent closes the connection or ends."""
        try:
            # A fork of the parent may keep the connection open after the parent has ended: so process ids are compared.
            while os.getppid() == self._pid:
                if self._connection.poll(_PARENT_CHECK_S):
                    yield self._connection.recv()
        except (EOFError, OSError):
            return

    def end_with_it(self) -> None:
        """Start a thread that exits this process when the parent closes the connection or ends, even in the middle of a
        computation."""
        threading.Thread(target=self._exit_with_parent, daemon=True).start()

    def _exit_with_parent(self) -> None:
        hang_up = select.poll()
        hang_up.register(self._connection.fileno(), 0)
        while os.getppid() == self._pid and not hang_up.poll(_PARENT_CHECK_S * 1000):
            pass
        os._exit(1)


class Worker:
    """A worker process and the connection to it, as its parent uses them. Only one thread may use it at a time.

    `module`, a name or the path of a file, defines `serve(parent, *arguments)`. `quiet` discards what the worker
    prints; otherwise its stdout and stderr both go to this process's stderr.
    """

    def __init__(self, module: str, *arguments: str, quiet: bool = False) -> None:
        ours, theirs = socket.socketpair()
        words = [str(theirs.fileno()), str(os.getpid()), module, str(len(arguments)), *arguments]
        with ours, theirs:
            self._process = subprocess.Popen(
                # -P and this process's own path: the worker finds the modules that this process finds.
                [sys.executable, "-P", "-c", _RUN, *words, *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if quiet else 2,  # never into this process's own output
                stderr=subprocess.DEVNULL if quiet else None,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
            self.connection = Connection(ours.detach())

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Any) -> bool:
        """Send a message; return False if the worker has died."""
        try:
            self.connection.send(message)
        except OSError:
            return False
        return True

    def receive(self, deadline: float | None = None) -> Any:
        """Return the next message. EOFError if the worker ended, TimeoutError at `deadline` (of `time.monotonic`)."""
        try:
            if deadline is not None and not self.connection.poll(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            return self.connection.recv()
        except TimeoutError:
            raise
        except OSError as error:
            raise EOFError from error

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def exit_status(self) -> int | None:
        """Return the exit status of a worker whose connection has ended; None if it still has not exited."""
        try:
            return self._process.wait(_EXIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """Let an idle worker exit by itself, and kill it if it does not."""
        self.connection.close()
        self.exit_status()
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        with suppress(OSError):
            self.connection.close()


W = TypeVar("W", bound=Worker)


class IdleWorkers(Generic[W]):
    """A store of workers between uses: `take` one, use it, then `put_back` or kill it. Any thread may call it.

    A forked child process inherits the connections, and perhaps a lock that another thread holds. It therefore forgets
    these workers and starts its own.
    """

    def __init__(self, start: Callable[[], W]) -> None:
        self._start = start
        self._closed = False
        self._forget()
        os.register_at_fork(after_in_child=partial(_forget_workers_of, weakref.ref(self)))

    def _forget(self) -> None:
        self._idle: list[W] = []
        self._lock = threading.Lock()

    @property
    def idle(self) -> Sequence[W]:
        return self._idle

    def take(self) -> W:
        """Return an idle worker that is still alive, or start one."""
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            if worker is None:
                return self._start()
            if worker.is_alive():
                return worker
            worker.kill()

    def put_back(self, worker: W) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(worker)
                return
        worker.kill()

    def close(self) -> None:
        """Stop the idle workers now; a worker that is in use is killed when it is put back."""
        with self._lock:
            self._closed, idle, self._idle = True, self._idle, []
        for worker in idle:
            worker.connection.close()  # all connections first, so that the workers exit in parallel
        for worker in idle:
            worker.stop()


def _forget_workers_of(reference: "weakref.ref[IdleWorkers[Any]]") -> None:
    workers = reference()
    if workers is not None:
        workers._forget()


def not_started(why: str, where: str, module: str) -> EgpoError:
    """Return the error for a worker that never sent `READY`."""
    fix = f"check that `{sys.executable} -c 'import {module}'` succeeds"
    return EgpoError(f"a worker process did not start: {why}", where=where, fix=fix)
