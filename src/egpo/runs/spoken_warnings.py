"""Our warnings where a run is watched."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from egpo.errors import EgpoWarning


@contextmanager
def warnings_said_by(say: Callable[[str], None]) -> Iterator[None]:
    """Our warnings as lines of the view, without the place in our code that gave them."""
    with warnings.catch_warnings():
        before = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, EgpoWarning):
                say(f"warning: {message}")
            else:
                before(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield
