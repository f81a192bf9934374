"""No verb is silent for long: `main` runs every verb inside `watched_verb`, which prints a line when nothing else does.

Output is noticed where it is written, on stdout and stderr, so that bars, log lines and tables postpone the line. Verbs
that know what takes long call `now_doing`. Servers, which wait for requests, call `ready` when they have started.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TextIO

from egpo.heartbeat import Heartbeat

SILENCE_S = 18.0
"""Seconds without output after which a line is printed; longer than the period of bars and of training."""

_beats: list[Heartbeat] = []
"""The heartbeat of the verb that runs in this process. Empty in a process that was not started as `egpo`."""


@contextmanager
def watched_verb(words: list[str], *, silence_s: float | None = None) -> Iterator[None]:
    """Print a line to stderr whenever the verb on this command line has printed nothing for `SILENCE_S` seconds."""
    verb = words[0] if words and not words[0].startswith("-") else ""
    beat = Heartbeat(_say(f"egpo {verb}".strip()), "still working", period_s=silence_s or SILENCE_S)
    try:
        beat.__enter__()
    except RuntimeError:  # no thread can be started: the verb may still work without
        yield
        return
    _beats.append(beat)
    streams = [stream for stream in (sys.stdout, sys.stderr) if stream is not None]
    restore = [_noticed(stream, beat) for stream in streams]
    try:
        yield
    finally:
        for undo in restore:
            undo()
        _beats.remove(beat)
        beat.__exit__(None, None, None)


def now_doing(what: str) -> None:
    """Set what the next lines say that the verb is doing, as in `uploading 3 files`."""
    for beat in _beats:
        beat.doing = what


def ready() -> None:
    """End the lines: the verb waits for requests from now on, which may take for ever."""
    for beat in _beats:
        beat.stop()


def _say(verb: str) -> Callable[[str], None]:
    return lambda line: print(f"{verb}: {line}", file=sys.stderr, flush=True)


def _noticed(stream: TextIO, beat: Heartbeat) -> Callable[[], None]:
    """Make each write to the stream postpone the next line. Return a function that undoes this."""
    write = stream.write

    @wraps(write)
    def noticed(text: Any) -> int:
        beat.spoke()
        return write(text)

    try:
        stream.write = noticed  # type: ignore[method-assign]
    except AttributeError:  # a stream of another kind, in a program that embeds this one
        return lambda: None

    def undo() -> None:
        if stream.__dict__.get("write") is noticed:
            del stream.write

    return undo
