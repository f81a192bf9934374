"""Compute parts of a batch in parallel threads, with one torch thread each.

torch splits every single operation among its threads. The operations of a small model are too small for that: two cores
are hardly faster than one. Parts of a batch are independent, so each core computes its own part.
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
"""Limit for the sum of all threads' gradients: each thread has its own. Larger models have operations that are large
enough for torch's own threads."""
_thread_state = threading.local()


class PartCancelledError(Exception):
    """The error that ends the computation of a part whose result is no longer needed.

    Another part failed, or the whole computation was interrupted.
    """


def num_worker_threads(policy: Policy) -> int:
    """Return into how many parallel threads a batch is split.

    This is the number of torch's threads for a small float32 model on a CPU that runs the engine's own forward pass,
    else 1.
    """
    num_threads = torch.get_num_threads()
    weights = [weight for weight in policy.model.parameters() if weight.requires_grad]
    num_bytes = sum(weight.numel() * weight.element_size() for weight in weights)
    suited = policy.path == "cpu_layers" and policy.head_VD.dtype == torch.float32
    return num_threads if suited and num_threads * num_bytes <= _MOST_GRADIENT_BYTES else 1


def parallel_map(work: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """Call `work` on every part, each in its own thread with one core. Return the results in the order of the parts.

    The result of a part depends neither on the other parts nor on which one finishes first. A single part is computed
    in the calling thread, with all cores.
    """
    if len(parts) < 2:
        return [work(part) for part in parts]
    num_threads, has_gradient, cancelled = torch.get_num_threads(), torch.is_grad_enabled(), threading.Event()

    def work_on_one_core(part: Part) -> Result:
        # Both torch settings are local to a thread.
        torch.set_num_threads(1)
        _thread_state.cancelled = cancelled
        with torch.set_grad_enabled(has_gradient):
            return work(part)

    jobs = [_Job(work_on_one_core, part) for part in parts]
    started = [job for job in jobs if job.start()]
    try:
        for job in jobs:
            if job not in started:  # no thread could be started: compute the part in the calling thread
                job.work()
        return _results([job.future for job in jobs])
    except BaseException:
        cancelled.set()
        raise
    finally:
        for job in started:
            job.thread.join()
        _thread_state.cancelled = None
        torch.set_num_threads(num_threads)


class _Job(Generic[Part, Result]):
    """A part, the thread that computes it, and its result."""

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
        except BaseException as error:  # raised again by `future.result()`
            self.future.set_exception(error)


def raise_if_cancelled() -> None:
    """Raise PartCancelledError if the result of this thread's part is no longer needed.

    Long computations call it regularly.
    """
    event: threading.Event | None = getattr(_thread_state, "cancelled", None)
    if event is not None and event.is_set():
        raise PartCancelledError


def _results(futures: list[Future[Result]]) -> list[Result]:
    """Return all results, or raise the first error as soon as it occurs, while other parts may still run."""
    done, _ = wait(futures, return_when=FIRST_EXCEPTION)
    for future in done:
        future.result()
    return [future.result() for future in futures]
