"""The stages of a step: how long each took, and who wants to know when one begins."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stages:
    """`on_enter` is called with the name of each stage that begins: a live view shows it, an interrupt may end the step
    there. Seconds add up until `take` reads them."""

    def __init__(self, on_enter: Callable[[str], None] = lambda name: None) -> None:
        self.on_enter = on_enter
        self._seconds: dict[str, float] = {}

    @contextmanager
    def enter(self, name: str) -> Iterator[None]:
        self.on_enter(name)
        start = time.perf_counter()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """Seconds by stage since the last call."""
        seconds, self._seconds = self._seconds, {}
        return seconds
