"""Worker processes that judge a stream of samples, in order.

Each is a new interpreter with a socket to it: no fork of a process that has threads, and no second run of the caller's
main module, so a notebook or a script without a main guard may use it. It ends when its socket closes.
"""

import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, wait

from egpo.errors import EgpoError
from egpo.rewards.named import Sample
from egpo.rewards.verdict import Verdict
from egpo.rewards.worker import READY, Outcome

CHUNK_ROWS = 64
CHUNK_CHARS = 1 << 20
"""A chunk is closed by whichever comes first: long responses must not pile up in a pipe."""
CHUNKS_AHEAD = 8
"""How far a worker may be ahead of the slowest one: what is waiting for its turn is in memory."""
_STOP_LIMIT_S = 5.0
_SERVE = "import sys; sys.path[:] = sys.argv[2:]; from egpo.rewards.worker import serve; serve(int(sys.argv[1]))"

CREW_REASONS = {"worker_died": "checker failure: the process that judged this response died"}


@dataclass(frozen=True)
class _Task:
    """Samples that follow each other, and the place of the first. `alone`: one whose worker has died before."""

    first: int
    samples: Sequence[Sample]
    alone: bool = False


class _Worker:
    def __init__(self, specs: Sequence[str | None]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                # The path as it is here, so that the worker finds what this process finds.
                [sys.executable, "-c", _SERVE, str(theirs.fileno()), *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=2,  # whatever is printed there must not mix with our own answer
                pass_fds=[theirs.fileno()],
            )
        self.connection = Connection(ours.detach())
        self.task: _Task | None = None
        self._ready = False
        # One that died is found out when its answer is awaited.
        with suppress(OSError):
            self.connection.send(list(specs))

    def take(self, task: _Task) -> None:
        self.task = task
        with suppress(OSError):
            self.connection.send(task.samples)

    def answer(self) -> list[Outcome] | None:
        """The outcomes of its task, or None where it has died. One that cannot even start is an error."""
        try:
            if not self._ready:
                greeting = self.connection.recv()
                if isinstance(greeting, EgpoError):
                    raise greeting
                self._ready = greeting == READY
            outcomes: list[Outcome] = self.connection.recv()
        except (EOFError, OSError) as error:
            if not self._ready:
                fix = f"`{sys.executable} -c 'import egpo.rewards.worker'` should succeed"
                raise EgpoError("a worker process did not start", where="rewards", fix=fix) from error
            return None
        return outcomes

    def stop(self) -> None:
        """Let an idle worker end by itself, and kill a busy one."""
        self.connection.close()
        if self.task is not None:
            self._process.kill()
        try:
            self._process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class WorkerPool:
    """Up to `num_workers` processes, started when there is work, and kept for the next batch until the `with` ends."""

    def __init__(self, num_workers: int, specs: Sequence[str | None] = (None,)) -> None:
        self.num_workers, self._specs = num_workers, specs
        self._workers: list[_Worker] = []
        self._forget_batch()

    def _forget_batch(self) -> None:
        self._retries: deque[_Task] = deque()
        self._done: dict[int, Outcome] = {}
        self._sizes: deque[int] = deque()  # characters of each sample that was handed out and not yet passed on
        self._num_chars = 0

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.stop()
        self._workers.clear()

    def judge(self, samples: Iterable[Sample], chunk_rows: int = CHUNK_ROWS) -> Iterator[Outcome]:
        """Outcomes in the order of the samples, whoever judged them. One batch at a time."""
        self._dismiss_busy()
        self._forget_batch()
        tasks = _tasks(samples, chunk_rows)
        next_row = 0
        while self._hand_out(tasks):
            self._collect()
            while next_row in self._done:
                self._num_chars -= self._sizes.popleft()
                yield self._done.pop(next_row)
                next_row += 1

    def _dismiss_busy(self) -> None:
        """A batch that was left half way has workers whose answers nobody waits for."""
        for worker in [worker for worker in self._workers if worker.task is not None]:
            self._workers.remove(worker)
            worker.stop()

    def _hand_out(self, tasks: Iterator[_Task]) -> bool:
        """Give every idle worker something to do, starting more while there are too few; False when all is done."""
        busy = [worker for worker in self._workers if worker.task is not None]
        idle = [worker for worker in self._workers if worker.task is None]
        while len(busy) < self.num_workers:
            task = self._retries.popleft() if self._retries else self._new_task(tasks)
            if task is None:
                break
            worker = idle.pop() if idle else self._hire()
            worker.take(task)
            busy.append(worker)
        return bool(busy)

    def _new_task(self, tasks: Iterator[_Task]) -> _Task | None:
        """The next one, unless too much is waiting for a slow one to be done."""
        allowed = CHUNKS_AHEAD * self.num_workers
        if len(self._sizes) > allowed * CHUNK_ROWS or self._num_chars > allowed * CHUNK_CHARS:
            return None
        task = next(tasks, None)
        if task is not None:
            sizes = [len(sample.response) for sample in task.samples]
            self._sizes.extend(sizes)
            self._num_chars += sum(sizes)
        return task

    def _hire(self) -> _Worker:
        worker = _Worker(self._specs)
        self._workers.append(worker)
        return worker

    def _collect(self) -> None:
        busy = {worker.connection: worker for worker in self._workers if worker.task is not None}
        for connection in wait(list(busy)):
            worker = busy[connection]  # type: ignore[index]
            task, outcomes = worker.task, worker.answer()
            assert task is not None
            if outcomes is None:
                self._workers.remove(worker)
                worker.stop()
                self._judge_alone(task)
                continue
            worker.task = None
            self._done.update(enumerate(outcomes, task.first))

    def _judge_alone(self, task: _Task) -> None:
        """Samples of a worker that died are tried once more, one by one; one whose worker dies again gets a failure."""
        if task.alone:
            verdict = Verdict(0.0, False, "worker_died", failed=True)
            self._done[task.first] = (verdict,) * len(self._specs)
            return
        self._retries.extend(_Task(task.first + i, [sample], alone=True) for i, sample in enumerate(task.samples))


def _tasks(samples: Iterable[Sample], chunk_rows: int) -> Iterator[_Task]:
    stream, first = iter(samples), 0
    while chunk := _chunk(stream, chunk_rows):
        yield _Task(first, chunk)
        first += len(chunk)


def _chunk(stream: Iterator[Sample], chunk_rows: int) -> list[Sample]:
    chunk, num_chars = [], 0
    for sample in islice(stream, chunk_rows):
        chunk.append(sample)
        num_chars += len(sample.response)
        if num_chars > CHUNK_CHARS:
            break
    return chunk
