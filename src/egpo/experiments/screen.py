"""The output of an experiment: messages and progress bars, on a terminal or in a test."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from egpo.evals.responses import ProgressCallback, ignore_progress
from egpo.runs.ledger import OnStep


class ProgressBar(Protocol):
    """A progress bar: `watch` advances it, `say` prints a line above it."""

    @property
    def watch(self) -> ProgressCallback: ...
    @property
    def say(self) -> Callable[[str], None]: ...


@dataclass(frozen=True)
class Screen:
    """An output: `say` prints a line; `watched(label)` shows a progress bar with that label during a `with` block.

    With `on_step`, each training step is passed to it, and the training prints nothing itself, unless `shows_steps`.
    """

    say: Callable[[str], None]
    watched: Callable[[str], AbstractContextManager[ProgressBar]]
    on_step: OnStep | None = None
    shows_steps: bool = False


@dataclass(frozen=True)
class _NoBar:
    say: Callable[[str], None]
    watch: ProgressCallback = ignore_progress


def plain_screen(say: Callable[[str], None]) -> Screen:
    """Return a screen that prints lines and shows no progress bars."""

    @contextmanager
    def watched(label: str) -> Iterator[ProgressBar]:
        yield _NoBar(say)

    return Screen(say, watched)
