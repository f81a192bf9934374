"""The time that a sandbox is charged: wall-clock time without that in which it waited for a processor.

Otherwise a right program is late because other programs, or the training itself, have the processors. Linux counts for
each task how long it was ready to run and had no processor (`/proc/PID/task/TID/schedstat`).

A program must not gain time by making itself wait. So at least its own processor time is charged, and of its tasks that
wait, which may wait for each other, only the one that waits longest counts: a program of one process that runs alone is
charged at least half of its time. Processes that end between two looks are not seen; `launch` has a limit for these.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

_WINDOW_S = 1.0
"""The task that waits longest is chosen in each second anew. A wait is counted at its end: a window must be longer."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True)
class Times:
    """Seconds by the clock, of processor time, and of waiting for a processor, all since any point in time."""

    clock_s: float = 0.0
    ran_s: float = 0.0
    waited_s: float = 0.0

    def charged_since(self, start: "Times") -> float:
        clock_s, waited_s = self.clock_s - start.clock_s, self.waited_s - start.waited_s
        return min(clock_s, max(clock_s - waited_s, self.ran_s - start.ran_s))


@dataclass(frozen=True)
class Process:
    """One process of a sandbox: how many generations below the first, seconds that it ran, and seconds that each of its
    tasks has waited."""

    pid: int
    depth: int
    ran_s: float
    waited_s: dict[str, float]


class ChargedTime:
    """The times of the process `pid` and of its descendants.

    `supervisor_depth`: generation of the supervisor; the processes below it are the program's. Where Linux does not
    count the waiting, all time is charged.
    """

    def __init__(self, pid: int, supervisor_depth: int) -> None:
        self._pid, self._supervisor_depth = pid, supervisor_depth
        self._ran_s: dict[int, float] = {}
        self._waited_s: dict[str, float] = {}
        self._tasks_of_program: set[str] = set()
        self._window, self._in_window_from = Times(time.monotonic()), dict[str, float]()
        self._start = self._test_start = self._last = self._window
        self.num_processes = 0
        """The largest number of the program's processes that was seen at once."""

    def look(self) -> None:
        """Read the counters. What a process does after the last look at it is not counted."""
        processes = list(_processes(self._pid))
        below = [one for one in processes if one.depth > self._supervisor_depth]
        self.num_processes = max(self.num_processes, len(below))
        for one in processes:
            self._ran_s[one.pid] = one.ran_s
            self._waited_s |= one.waited_s
        self._tasks_of_program.update(task for one in below for task in one.waited_s)
        now, ran_s = time.monotonic(), sum(self._ran_s.values())
        in_window_s = min(now - self._window.clock_s, self._waited_in_window())
        self._last = Times(now, ran_s, self._window.waited_s + in_window_s)
        if now - self._window.clock_s >= _WINDOW_S:
            self._window, self._in_window_from = self._last, dict(self._waited_s)

    def _waited_in_window(self) -> float:
        """Return the waiting of the supervisor and of the program's task that waited longest, in this window."""
        waited_s = {task: found - self._in_window_from.get(task, 0.0) for task, found in self._waited_s.items()}
        program = [waited_s[task] for task in self._tasks_of_program]
        return sum(waited_s.values()) - sum(program) + max(program, default=0.0)

    def start(self) -> None:
        """Begin to charge: the first test starts."""
        self.look()
        self._start = self._test_start = self._last

    def start_test(self) -> None:
        self._test_start = Times(time.monotonic(), self._last.ran_s, self._last.waited_s)

    def waited_in_test_s(self) -> float:
        """Return the seconds of the current test that are not charged."""
        self.look()
        return self._last.clock_s - self._test_start.clock_s - self._last.charged_since(self._test_start)

    @property
    def charged_s(self) -> float:
        """The seconds that are charged for all tests, at the last look."""
        return self._last.charged_since(self._start)


def _processes(pid: int, depth: int = 0) -> Iterator[Process]:
    """Yield a process and its descendants. None where Linux does not count the waiting."""
    children: list[int] = []
    waited_s = {}
    try:
        with open(f"/proc/{pid}/stat") as stat:
            # The 14th and 15th field. They are counted from the end of the command's name, which may have spaces.
            ran = sum(map(int, stat.read().rpartition(")")[2].split()[11:13]))
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat") as schedstat:
                waited_s[task] = int(schedstat.read().split()[1]) / 1e9
            with open(f"/proc/{pid}/task/{task}/children") as listed:
                children += map(int, listed.read().split())
    except (OSError, ValueError, IndexError):  # a task has ended, or there are no counters
        if not waited_s:
            return
    yield Process(pid, depth, ran / _TICKS_PER_S, waited_s)
    for child in children:
        yield from _processes(child, depth + 1)
