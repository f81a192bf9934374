"""Signals to a verb, and the end of its process: what `python -m egpo` and the console script put around every verb.

The first signal raises `VerbStopped` in the main thread, so that every `with` and `finally` runs: files that are not
complete, temporary folders and child processes are removed. Then the command that continues is printed, and the exit
code is 128 + the number of the signal. A second signal of a user ends the process at once. Training, `--parallel` and
verl put their own handlers in place while they run, because they save first.

Nothing of the package but `errors` is imported here: signals are handled before typer is loaded.
"""

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from egpo.errors import ERROR_PREFIX, NOTICE_PREFIX, NOTICES, stop_signals

EXIT_S = 10.0
"""Seconds for which a process that has failed, or was stopped, waits for its threads before it ends without them."""
STOPPING = f"{NOTICE_PREFIX}stopping; send the signal again to stop at once"


class VerbStopped(KeyboardInterrupt):
    """The error that ends a verb after a signal. Not an Exception, so that `except Exception` misses it."""


@contextmanager
def stopped_by_signals(words: list[str]) -> Iterator[None]:
    """Turn the first signal that stops a run into `VerbStopped`, then into a line and an exit code.

    A server that Ctrl-C has ended in good order exits with 0.
    """
    received: list[int] = []
    before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    def receive(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        for each in before:
            signal.signal(each, signal.SIG_IGN if each in NOTICES else signal.SIG_DFL)
        with suppress(OSError):  # written directly: a handler may run in the middle of a print
            os.write(2, f"{STOPPING}\n".encode())
        raise VerbStopped

    before.update({signum: signal.signal(signum, receive) for signum in stop_signals()})
    try:
        yield
    except BaseException as error:
        is_done = isinstance(error, SystemExit) and not error.code  # typer ends every verb with an exit
        if not received or (is_done and received[0] == signal.SIGINT):
            raise
        # Whatever it is now: an interrupted import may end as another error, and typer turns interrupts into an exit.
        raise SystemExit(_stopped(received[0], words)) from None
    else:
        if received and received[0] != signal.SIGINT:
            raise SystemExit(_stopped(received[0], words))
    finally:
        for signum, handler in before.items():
            # None: the earlier handler was not installed by Python, and cannot be restored.
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)


def _stopped(signum: int, words: list[str]) -> int:
    command = shlex.join(["egpo", *words])
    with suppress(OSError, ValueError):
        name = signal.Signals(signum).name
        print(f"{ERROR_PREFIX}stopped by {name}; run the same command again: {command}", file=sys.stderr, flush=True)
    return 128 + signum


@contextmanager
def prompt_exit() -> Iterator[None]:
    """Limit the time that the interpreter takes to end after a block that failed or was stopped.

    The interpreter waits for threads without a limit, for example for one that waits for a server.
    """
    try:
        yield
    except BaseException as error:
        code = error.code if isinstance(error, SystemExit) else 1
        if code:
            threading.Thread(target=_end_process, args=(code,), daemon=True).start()
        raise


def _end_process(code: object) -> None:
    time.sleep(EXIT_S)
    os._exit(code if isinstance(code, int) else 1)
