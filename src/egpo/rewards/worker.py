"""A process that judges samples for `egpo.rewards.worker_pool` until its connection closes."""

import os
import select
import signal
import threading
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection

from egpo.errors import EgpoError
from egpo.rewards.named import Sample, Scorer, scorer_named
from egpo.rewards.verdict import Verdict

Outcome = tuple[Verdict, ...] | EgpoError
"""A verdict of each reward on one sample, or the error that stopped one of them."""
READY = "ready"


def serve(fd: int) -> None:
    """First the names of the rewards, answered by READY or an error; then lists of samples, answered by outcomes."""
    # Ctrl-C reaches every process of a terminal: the parent decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A process that a judge starts must not keep the connection open after this one has died.
    os.set_inheritable(fd, False)
    threading.Thread(target=_leave_with_parent, args=(fd,), daemon=True).start()
    with Connection(fd) as parent:
        try:
            scorers = [scorer_named(spec) for spec in parent.recv()]
            parent.send(READY)
            while True:
                parent.send([judge_sample(sample, scorers) for sample in parent.recv()])
        except EgpoError as error:
            parent.send(error)
        except (EOFError, OSError):
            return


def _leave_with_parent(fd: int) -> None:
    """End at once when the other side is gone, in the middle of a sample too: nobody waits for the rest."""
    hang_up = select.poll()
    hang_up.register(fd, 0)
    hang_up.poll()
    os._exit(1)


def judge_sample(sample: Sample, scorers: Sequence[Scorer]) -> Outcome:
    try:
        return tuple(scorer(sample) for scorer in scorers)
    except EgpoError as error:
        return error
    except (
        Exception,
        SystemExit,
    ) as error:  # the boundary of the process: the parent would see a dead worker, and not why
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(last.filename)}:{last.lineno}"
        return EgpoError(f"{type(error).__name__} at {place}: {error}", where="rewards", fix="report it: this is a bug")
