"""What libraries would draw over the live view."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from egpo.errors import EgpoWarning


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """transformers draws one for every load and save."""
    from transformers.utils import logging  # here: those who only listen to warnings need not wait for it

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


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
