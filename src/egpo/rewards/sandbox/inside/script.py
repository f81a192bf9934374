"""The run of a whole program, as by `python solution.py`. It happens in the program's process, which is not trusted."""

from __future__ import annotations

import posix as os
import sys

from egpo.rewards.sandbox.inside.execute import execute_as_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def run_script(source: str) -> int:
    """Run `source` as `python solution.py` would, and return its exit code."""
    from io import TextIOWrapper

    raw_in, raw_out = open(0, "rb", closefd=False), open(1, "wb", closefd=False)  # noqa: SIM115
    sys.stdin = sys.__stdin__ = TextIOWrapper(raw_in, encoding="utf-8", errors="surrogateescape")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = TextIOWrapper(raw_out, encoding="utf-8", errors="surrogateescape")  # type: ignore[misc]
    code = _exit_code(lambda: execute_as_module(source, "__main__"))
    return _exit_code(_leave) or code


def _leave() -> None:
    """Do what an interpreter does at its end: wait for threads, call exit functions, and flush the output."""
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    if "atexit" in sys.modules:
        sys.modules["atexit"]._run_exitfuncs()
    # Files that the program has opened on its output are flushed when they are deleted.
    sys.modules["__main__"].__dict__.clear()
    for stream in (sys.stdout, sys.__stdout__, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()


def _exit_code(step: Callable[[], object]) -> int:
    try:
        step()
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return (stop.code or 0) & 0xFF
        os.write(2, str(stop.code).encode("utf-8", "replace"))
        return 1
    except BaseException:  # boundary: whatever a program raises is its own exit
        sys.__excepthook__(*sys.exc_info())
        return 1
    return 0
