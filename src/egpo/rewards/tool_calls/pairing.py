"""Pairs of calls and answers, where a call may fit several answers: a maximum matching of a bipartite graph."""

from collections.abc import Callable


class Pairing:
    """Which of `num_calls` calls has which answer. `fits(call, answer)` tells, by index, who may be paired."""

    def __init__(self, num_calls: int, fits: Callable[[int, int], bool]) -> None:
        self._calls = range(num_calls)
        self._fits = fits
        self._answer_of: dict[int, int] = {}
        self._call_of: dict[int, int] = {}

    def free_calls(self) -> list[int]:
        return [call for call in self._calls if call not in self._answer_of]

    def add(self, answer: int) -> bool:
        """Find a call for one more answer, moving earlier pairs if need be: an augmenting path, breadth first.

        False where there is none: then no pairing serves all the answers so far.
        """
        reached_from: dict[int, int] = {}
        queue = [answer]
        for seeker in queue:
            for call in self._calls:
                if call in reached_from or not self._fits(call, seeker):
                    continue
                reached_from[call] = seeker
                if call not in self._answer_of:
                    self._move(call, reached_from)
                    return True
                queue.append(self._answer_of[call])
        return False

    def _move(self, free: int | None, reached_from: dict[int, int]) -> None:
        """Along the path back to its start, each answer takes the call that it reached and leaves its former one."""
        while free is not None:
            taker = reached_from[free]
            former = self._call_of.get(taker)
            self._call_of[taker], self._answer_of[free] = free, taker
            free = former
