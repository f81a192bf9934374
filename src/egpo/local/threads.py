"""Work on several cores, one torch thread each.

torch shares every single operation among its threads, and those of a small model are too small to share: two cores do
hardly more than one. Parts of a batch are independent, so here each core works on its own.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Generic, TypeVar

import torch

from egpo.local.models.policy import Policy

Part = TypeVar("Part")
Result = TypeVar("Result")

_MOST_GRADIENT_BYTES = 1 << 30
"""Each side sums gradients of its own: for larger models the operations themselves are large enough to share."""
_here = threading.local()


class UnwantedError(Exception):
    """Another part has failed, or the whole was interrupted: nobody waits for this one any more."""


def num_sides(policy: Policy) -> int:
    """How many parts are worked on at once: as many as torch has threads, for a small float32 model on a CPU whose
    forward pass is the engine's own; else one."""
    sides = torch.get_num_threads()
    weights = [weight for weight in policy.model.parameters() if weight.requires_grad]
    num_bytes = sum(weight.numel() * weight.element_size() for weight in weights)
    suited = policy.path == "cpu_layers" and policy.head_VD.dtype == torch.float32
    return sides if suited and sides * num_bytes <= _MOST_GRADIENT_BYTES else 1


def side_by_side(work: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """`work` on every part, each in a thread that has one core; the results in the order of the parts. What a part
    computes depends neither on the others nor on who is done first. One part is worked on here, with all cores."""
    if len(parts) < 2:
        return [work(part) for part in parts]
    num_threads, has_gradient, unwanted = torch.get_num_threads(), torch.is_grad_enabled(), threading.Event()

    def alone(part: Part) -> Result:
        # Both switches are a thread's own.
        torch.set_num_threads(1)
        _here.unwanted = unwanted
        with torch.set_grad_enabled(has_gradient):
            return work(part)

    jobs = [_Job(alone, part) for part in parts]
    started = [job for job in jobs if job.start()]
    try:
        for job in jobs:
            if job not in started:  # a machine that has no thread left: in this one
                job.work()
        return _results([job.future for job in jobs])
    except BaseException:
        unwanted.set()
        raise
    finally:
        for job in started:
            job.thread.join()
        _here.unwanted = None
        torch.set_num_threads(num_threads)


class _Job(Generic[Part, Result]):
    """A part, the thread that is to work on it, and what comes of it."""

    def __init__(self, work: Callable[[Part], Result], part: Part) -> None:
        self._work, self._part = work, part
        self.future: Future[Result] = Future()
        self.thread = threading.Thread(target=self.work)

    def start(self) -> bool:
        try:
            self.thread.start()
        except RuntimeError:
            return False
        return True

    def work(self) -> None:
        try:
            self.future.set_result(self._work(self._part))
        except BaseException as error:  # it is raised where the result is asked for
            self.future.set_exception(error)


def require_wanted() -> None:
    """Called now and then by work that takes long: ends it where nobody waits for it."""
    event: threading.Event | None = getattr(_here, "unwanted", None)
    if event is not None and event.is_set():
        raise UnwantedError


def _results(futures: list[Future[Result]]) -> list[Result]:
    """The first error there is, not that of the first part: the others may still be long at work."""
    done, _ = wait(futures, return_when=FIRST_EXCEPTION)
    for future in done:
        future.result()
    return [future.result() for future in futures]
