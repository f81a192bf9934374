"""The process that runs math-verify, and may be killed at any moment.

Run by path with `python -P`, so that it imports math-verify and nothing of this package: it starts in half a second and
carries no torch. One JSON request a line comes in, one word a line goes out. It never outlives its parent for long:
idle, it ends when its input does or when its parent has changed; busy, when the kernel's alarm rings, which no
computation can hold up.
"""

import json
import logging
import os
import resource
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TextIO

READY = "ready"
PARENT_CHECK_S = 5.0
ALARM_GRACE_S = 2.0
"""The parent kills at the time limit. The alarm, a little later, is for a worker whose parent is gone."""


def main(parent: int, memory_bytes: int) -> None:
    """Answer requests until the parent is gone."""
    replies = _private_stdout()
    # A parent that ignores or blocks the alarm would hand that down.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    with suppress(ValueError):  # a stricter limit is in force already
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    logging.disable(logging.CRITICAL)
    try:
        import math_verify
    except ImportError as error:
        _say(replies, f"cannot import math-verify: {error}")
        return
    _say(replies, READY)
    for request in _requests(parent):
        signal.setitimer(signal.ITIMER_REAL, request["timeout_s"] + ALARM_GRACE_S)
        reply = _compare(math_verify, request["gold"], request["answer"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        if _memory_is_spent(memory_bytes):
            # math-verify swallows MemoryError like any other error: a "no" after the memory ran short is no answer.
            reply = "same_and_spent" if reply == "same" else "checker_memory"
        _say(replies, reply)


def _private_stdout() -> TextIO:
    """The channel to the parent, out of reach of whatever the libraries print."""
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    return replies


def _say(replies: TextIO, word: str) -> None:
    replies.write(ascii(word)[1:-1] + "\n")
    replies.flush()


def _requests(parent: int) -> Iterator[dict[str, Any]]:
    """Each request, parsed. Ends with the input, or with the parent (a fork of it may still hold the pipe open)."""
    pending = b""
    while os.getppid() == parent:
        if not select.select([0], [], [], PARENT_CHECK_S)[0]:
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return
        *lines, pending = (pending + chunk).split(b"\n")
        yield from map(json.loads, lines)


def _memory_is_spent(memory_bytes: int) -> bool:
    """Whether this process ever held a quarter of its limit: numbers grow by squaring, and the next one would not fit.

    Not by `ru_maxrss`, which Linux carries over from the process that started this one. Where there is no /proc: never.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            peak_kb = next((int(line.split()[1]) for line in status if line.startswith("VmHWM:")), 0)
    except OSError:
        return False
    return peak_kb * 1024 > memory_bytes // 4


def _compare(math_verify: Any, gold: str, answer: str) -> str:
    """One of same, different, unparsable, gold_unparsable, checker_error.

    LaTeX alone, whole or not at all: math-verify's other extraction hands text to sympy's `parse_expr`: to `eval`.
    Its own time limit is off, because it is `signal.alarm`.
    """
    try:
        expected = _parse(math_verify, gold)
        if not expected:
            return "gold_unparsable"
        stated = _parse(math_verify, answer)
        if not stated:
            return "unparsable"
        equal = not _contradicts_itself(stated[0]) and math_verify.verify(expected, stated, timeout_seconds=None)
        return "same" if equal else "different"
    except Exception:  # the boundary to the library: whatever it raises is a failure of the checker
        return "checker_error"


def _parse(math_verify: Any, latex: str) -> list[Any]:
    parsed: list[Any] = math_verify.parse(
        f"\\boxed{{{latex}}}",
        [math_verify.LatexExtractionConfig(boxed_match_priority=0)],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    return parsed


def _contradicts_itself(stated: Any) -> bool:
    """`7 = 5` is no way to say 5, although math-verify takes the right-hand side of any equation."""
    from sympy import And, false  # type: ignore[import-untyped]
    from sympy.core.relational import Relational  # type: ignore[import-untyped]

    # One by one: the chain `a = b = c` is a conjunction whose own `doit` may raise.
    claims = stated.args if isinstance(stated, And) else (stated,)
    return any(isinstance(claim, Relational) and claim.doit() is false for claim in claims)


if __name__ == "__main__":
    main(parent=int(sys.argv[1]), memory_bytes=int(sys.argv[2]))
