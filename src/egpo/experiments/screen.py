"""Where an experiment writes its messages and progress bars: a terminal, or a test."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from egpo.evals.responses import ProgressCallback, ignore_progress


class ProgressBar(Protocol):
    """A progress bar: `watch` moves it, `say` writes a line above it."""

    @property
    def watch(self) -> ProgressCallback: ...
    @property
    def say(self) -> Callable[[str], None]: ...


@dataclass(frozen=True)
class Screen:
    """`say` writes a line; `watched` shows a progress bar with that label until its block ends."""

    say: Callable[[str], None]
    watched: Callable[[str], AbstractContextManager[ProgressBar]]


@dataclass(frozen=True)
class _NoBar:
    say: Callable[[str], None]
    watch: ProgressCallback = ignore_progress


def plain_screen(say: Callable[[str], None]) -> Screen:
    """Return a screen that writes lines and shows no bars."""

    @contextmanager
    def watched(label: str) -> Iterator[ProgressBar]:
        yield _NoBar(say)

    return Screen(say, watched)
