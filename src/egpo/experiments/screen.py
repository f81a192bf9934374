"""Who watches an experiment, or a demo."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from egpo.evals.responses import ProgressCallback, ignore_progress


class View(Protocol):
    """A bar under way: `watch` moves it, `say` writes a line above it."""

    @property
    def watch(self) -> ProgressCallback: ...
    @property
    def say(self) -> Callable[[str], None]: ...


@dataclass(frozen=True)
class Screen:
    """`say` writes a line; `watched` shows a bar of that name while its block lasts."""

    say: Callable[[str], None]
    watched: Callable[[str], AbstractContextManager[View]]


@dataclass(frozen=True)
class _Unseen:
    say: Callable[[str], None]
    watch: ProgressCallback = ignore_progress


def plain_screen(say: Callable[[str], None]) -> Screen:
    """Lines, and no bars."""

    @contextmanager
    def watched(label: str) -> Iterator[View]:
        yield _Unseen(say)

    return Screen(say, watched)
