"""A pool of worker processes that judge a stream of samples in order: the code of the parent and of the workers.

A worker receives the names of the rewards and answers with READY or an error. Then it receives lists of samples and
answers each with a list of outcomes, with a sign of life between slow samples. A sample whose worker dies twice, or is
killed twice at the time limit of a sample, gets the verdict `worker_died`; other samples are not affected.
"""

import os
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import wait

from egpo.errors import EgpoError, how_it_ended
from egpo.processes.workers import READY, IdleWorkers, Parent, Worker, not_started
from egpo.rewards.named import Sample, Scorer, scorer_named
from egpo.rewards.verdict import Verdict

Outcome = tuple[Verdict, ...] | EgpoError
"""The verdict of each reward on one sample, or the error that one of them raised."""
_LOOK_S = 1.0
CHUNK_ROWS = 64
CHUNK_CHARS = 1 << 20
"""Limits on the samples and on the characters of a chunk, which is sent to a worker at once: long responses must not
fill up a pipe."""
CHUNKS_AHEAD = 8
"""Limit on the chunks per worker that are finished before an earlier chunk: their outcomes wait in memory."""

START_LIMIT_S = SAMPLE_LIMIT_S = 300.0
"""Time limits for the start of a worker and for one sample: a user's function may hang."""
_ALIVE = "alive"
"""The message of a worker that begins with another sample, sent at most once a second."""

POOL_REASONS = {"worker_died": "checker failure: the process that judged this response died"}


class WorkerPool:
    """A pool of at most `num_workers` processes that judge samples by the rewards `specs`.

    Processes are started when there is work, and kept between batches until the `with` block ends.
    """

    def __init__(self, num_workers: int, specs: Sequence[str | None] = (None,)) -> None:
        self.num_workers, self._specs = num_workers, specs
        self._idle = IdleWorkers(lambda: _Judge(specs))
        self._busy: list[_Judge] = []
        self._reset_batch()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        self._kill_busy()
        self._idle.close()

    def judge(self, samples: Iterable[Sample], chunk_rows: int = CHUNK_ROWS) -> Iterator[Outcome]:
        """Yield an outcome for each sample, in the order of the samples. Only one batch may be judged at a time."""
        self._kill_busy()  # a batch that was abandoned has workers whose outcomes are no longer wanted
        self._reset_batch()
        chunks = _chunks(samples, chunk_rows)
        next_row = 0
        while self._assign(chunks):
            self._collect()
            while next_row in self._done:
                self._num_chars -= self._sizes.popleft()
                yield self._done.pop(next_row)
                next_row += 1

    def _reset_batch(self) -> None:
        self._retries: deque[_Chunk] = deque()
        self._done: dict[int, Outcome] = {}
        self._sizes: deque[int] = deque()  # characters of each sample that was assigned and not yet yielded
        self._num_chars = 0

    def _kill_busy(self) -> None:
        for worker in self._busy:
            worker.kill()
        self._busy.clear()

    def _assign(self, chunks: Iterator["_Chunk"]) -> bool:
        """Give a chunk to each free worker; return False when no chunk is left and no worker is busy."""
        while len(self._busy) < self.num_workers:
            chunk = self._retries.popleft() if self._retries else self._next_chunk(chunks)
            if chunk is None:
                break
            worker = self._idle.take()
            self._busy.append(worker)
            worker.assign(chunk)
        return bool(self._busy)

    def _next_chunk(self, chunks: Iterator["_Chunk"]) -> "_Chunk | None":
        """Return the next chunk; None if there is none, or if too many samples wait for an earlier, slow one."""
        allowed = CHUNKS_AHEAD * self.num_workers
        if len(self._sizes) > allowed * CHUNK_ROWS or self._num_chars > allowed * CHUNK_CHARS:
            return None
        chunk = next(chunks, None)
        if chunk is not None:
            sizes = [len(sample.response) for sample in chunk.samples]
            self._sizes.extend(sizes)
            self._num_chars += sum(sizes)
        return chunk

    def _collect(self) -> None:
        """Wait for at least one busy worker, and store the outcomes of each that has answered."""
        by_connection = {worker.connection: worker for worker in self._busy}
        ready = {by_connection[one] for one in wait(list(by_connection), _LOOK_S)}  # type: ignore[index]
        for worker in [one for one in self._busy if one in ready or one.is_late]:
            chunk, outcomes = worker.chunk, worker.outcomes() if worker in ready else None
            if isinstance(outcomes, str):
                continue
            self._busy.remove(worker)
            if outcomes is None:
                worker.kill()
                self._judge_alone(chunk)
            else:
                self._idle.put_back(worker)
                self._done.update(enumerate(outcomes, chunk.first))

    def _judge_alone(self, chunk: "_Chunk") -> None:
        """Retry the samples of a worker that died, one by one; a sample whose worker dies again gets `worker_died`."""
        if chunk.is_retry:
            verdict = Verdict(0.0, False, "worker_died", failed=True)
            self._done[chunk.first] = (verdict,) * len(self._specs)
            return
        self._retries.extend(_Chunk(chunk.first + i, [sample], is_retry=True) for i, sample in enumerate(chunk.samples))


@dataclass(frozen=True)
class _Chunk:
    """Consecutive samples, and the row of the first. `is_retry`: a single sample whose worker has died once."""

    first: int
    samples: Sequence[Sample]
    is_retry: bool = False


class _Judge(Worker):
    """A worker process with the chunk that it judges."""

    chunk: _Chunk
    _heard: float

    def __init__(self, specs: Sequence[str | None]) -> None:
        super().__init__("egpo.rewards.worker_pool")
        self._is_ready = False
        self.send(list(specs))  # if the worker died, `outcomes` reports it

    def assign(self, chunk: _Chunk) -> None:
        self.chunk, self._heard = chunk, time.monotonic()
        self.send(chunk.samples)

    @property
    def is_late(self) -> bool:
        return time.monotonic() - self._heard > (SAMPLE_LIMIT_S if self._is_ready else START_LIMIT_S)

    def outcomes(self) -> list[Outcome] | str | None:
        """Return the outcomes of the chunk, or `_ALIVE`; None if the worker died. EgpoError if it could not start."""
        self._heard = time.monotonic()
        try:
            if not self._is_ready:
                greeting = self.receive()
                if isinstance(greeting, EgpoError):
                    raise greeting
                self._is_ready = greeting == READY
                return _ALIVE
            outcomes: list[Outcome] | str = self.receive()
        except EOFError as error:
            if not self._is_ready:
                why = how_it_ended(self.exit_status() or 0)
                raise not_started(why, "rewards", "egpo.rewards.worker_pool") from error
            return None
        return outcomes


def _chunks(samples: Iterable[Sample], chunk_rows: int) -> Iterator[_Chunk]:
    stream, first = iter(samples), 0
    while chunk := _next_samples(stream, chunk_rows):
        yield _Chunk(first, chunk)
        first += len(chunk)


def _next_samples(stream: Iterator[Sample], chunk_rows: int) -> list[Sample]:
    chunk, num_chars = [], 0
    for sample in islice(stream, chunk_rows):
        chunk.append(sample)
        num_chars += len(sample.response)
        if num_chars > CHUNK_CHARS:
            break
    return chunk


def serve(parent: Parent) -> None:
    """Run a worker process: judge samples until the parent closes the connection."""
    parent.end_with_it()
    messages = parent.messages()
    try:
        scorers = [scorer_named(spec) for spec in next(messages, [])]
        parent.send(READY)
        for samples in messages:
            outcomes, heard = [], time.monotonic()
            for sample in samples:
                if time.monotonic() - heard > _LOOK_S:
                    parent.send(_ALIVE)
                    heard = time.monotonic()
                outcomes.append(judge_sample(sample, scorers))
            parent.send(outcomes)
    except EgpoError as error:
        parent.send(error)
    except OSError:
        return


def judge_sample(sample: Sample, scorers: Sequence[Scorer]) -> Outcome:
    """Return the verdict of each scorer, or the error that one of them raised."""
    try:
        return tuple(scorer(sample) for scorer in scorers)
    except EgpoError as error:
        return error
    except (Exception, SystemExit) as error:  # the boundary of the process: the parent would only see a dead worker
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(last.filename)}:{last.lineno}"
        what = f"{type(error).__name__} at {place}: {error}"
        return EgpoError(what, where="rewards", fix="this is a bug in egpo: please report it")
