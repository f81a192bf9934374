"""The runner of test code against a program that is in another process."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` would bring `enum` along
import builtins

from egpo.rewards.sandbox.inside.containment import too_many_files
from egpo.rewards.sandbox.inside.deadline import Deadline
from egpo.rewards.sandbox.inside.equality import same
from egpo.rewards.sandbox.inside.execute import execute
from egpo.rewards.sandbox.inside.remote import Connection, ProgramError, Remote, RemoteType, Unsupported
from egpo.rewards.sandbox.inside.wire import Closed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Record = Callable[..., None]


TICK_S = 0.02


class OutOfTime(BaseException):
    """An error for a time limit that was reached. Not an `Exception`, so that no test catches it by accident."""


class TooManyFiles(BaseException):
    """An error for a program that has made more files than allowed."""


def run_checks(job: dict[str, Any], tests: dict[str, Any], connection: Connection, report: Record) -> None:
    """Run every check in order, report its result, and stop if the program can no longer answer.

    Checks after a timeout or the end of the program have no record, and the host counts them as not passed.
    """
    scope: dict[str, Any] = {"__name__": "test", "__builtins__": builtins}

    def timed(work: Callable[[], object]) -> tuple[str, bytes]:
        return _timed(connection, Alarm(job, report), work)

    status, error = timed(lambda: connection.answer())
    if status == "ok":
        status, error = timed(lambda: _prepare(tests, connection, scope))
        # The setup of the tests failed by itself: the fault is not the program's.
        status = "unsupported" if status == "wrong" else status
    if status != "ok":
        report("load" if status == "error" else status, 0, b"", error)
        return
    for check in tests["checks"]:
        status, error = timed(lambda check=check: _run(check, scope, connection))  # type: ignore[misc]
        report(status, 0, b"", error)
        if status in ("timeout", "died", "files") or (status != "ok" and job["stop_early"]):
            return


def _prepare(tests: dict[str, Any], connection: Connection, scope: dict[str, Any]) -> None:
    """Bind the names that the tests take from the program, then run the code before the first test."""
    for name in tests["modules"]:
        module, _, inside = name.partition(".")
        scope[module] = getattr(__import__(module), inside) if inside else __import__(module)
    if any("inspect" in code for code in (tests["setup"], *tests["checks"]) if isinstance(code, str)):
        _let_inspect_ask(connection)
    for name in tests["names"]:
        try:  # noqa: SIM105
            scope[name] = connection.ask("name", name)
        except NameError:
            # Left unbound: the test that uses it fails with a NameError of its own.
            pass
    execute(tests["setup"], scope)


def _let_inspect_ask(connection: Connection) -> None:
    """Make `inspect.getsource` return the program's source for a stand-in of its function or class."""
    import inspect

    own: Callable[[Any], str] = inspect.getsource

    def getsource(target: Any) -> str:
        stands = isinstance(target, (Remote, RemoteType))
        return str(connection.ask("source", target)) if stands else own(target)

    inspect.getsource = getsource  # type: ignore[assignment]


def _run(check: Any, scope: dict[str, Any], connection: Connection) -> None:
    if isinstance(check, str):
        execute(check, scope)
        return
    function = connection.ask("name", check["fn_name"])
    # `function` is not called: that would let the program change the arguments, which may also be the expected value.
    got = connection.ask("call_for_data", function, check["args"], check["kwargs"])
    if not any(same(got, right) for right in check["expected"]):
        raise AssertionError("another value was expected")


def _timed(connection: Connection, alarm: Alarm, work: Callable[[], object]) -> tuple[str, bytes]:
    """Run `work` within the limits; return its status and error text. The status is ok, wrong, error (the program
    raised an exception), timeout, files (too many), died, or unsupported (a fault of the test)."""
    try:
        try:
            return _attempt(connection, work)
        finally:
            alarm.disarm()
    except OutOfTime:
        return "timeout", b""
    except TooManyFiles:
        return "files", b""
    except (Closed, BrokenPipeError):
        return "died", b""
    except Unsupported as error:
        return "unsupported", str(error).encode("utf-8", "replace")


def _attempt(connection: Connection, work: Callable[[], object]) -> tuple[str, bytes]:
    try:
        work()
    except BrokenPipeError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # boundary: a test fails by raising
        if isinstance(error, ImportError) and error is not connection.raised:
            raise Unsupported(f"the test needs a module that the sandbox does not have: {error}") from None
        # A NameError counts as the program's error: the program does not define what the tests call.
        raised = error is connection.raised or isinstance(error, (ProgramError, NameError))
        kind = "error" if raised else "wrong"
        return kind, f"{type(error).__name__}: {error}".encode("utf-8", "replace")[-2000:]
    return "ok", b""


class Alarm:
    """A timer that checks the limits every 20 ms, and raises in the main thread if one is exceeded."""

    def __init__(self, job: dict[str, Any], report: Record) -> None:
        self.job, self.armed = job, True
        self.deadline = Deadline(job, report)
        _signal.signal(_signal.SIGALRM, self.ring)
        _signal.setitimer(_signal.ITIMER_REAL, TICK_S, TICK_S)

    def ring(self, signal: int, stack: object) -> None:
        if not self.armed:
            return
        self.armed = False  # the timer also rings while the host is asked
        late = self.deadline.has_passed()
        self.armed = True
        if late:
            raise OutOfTime
        if too_many_files(self.job):
            raise TooManyFiles

    def disarm(self) -> None:
        self.armed = False
        _signal.setitimer(_signal.ITIMER_REAL, 0)
