"""The exceptions and warnings of egpo, and the signals that stop a run.

Every message has the format "where: what is wrong; what to do", as in
``mine.yaml [update]: unknown key `clp`; did you mean `clip`?``
"""

import signal
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True)
class Fault:
    """One error in an input: what is wrong, where it is, and how to fix it."""

    what: str
    where: str = ""
    fix: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f"; {self.fix}" if self.fix else ""
        return f"{place}{self.what}{advice}"


class EgpoError(Exception):
    """The base class of egpo's exceptions. It is raised itself if egpo or the machine fails: exit code 1."""

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.faults = [Fault(what, where, fix)]
        super().__init__(str(self.faults[0]))

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython and Jupyter show for this exception: the message, without a traceback."""
        return [f"{type(self).__name__}: {self}"]

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the exception with its faults: process pools and Ray send exceptions between processes."""
        return _revived, (type(self), self.faults)


class InputError(EgpoError, ValueError):
    """The exception for an input of the user that cannot be used: exit code 2."""

    exit_code = 2


class ConfigError(InputError):
    """The exception for a recipe or an override with faults. It contains every fault found, not only the first."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = list(faults)
        Exception.__init__(self, "\n".join(map(str, self.faults)))


def _revived(kind: type[EgpoError], faults: list[Fault]) -> EgpoError:
    error = kind.__new__(kind, "\n".join(map(str, faults)))
    error.faults = faults
    return error


class EgpoWarning(UserWarning):
    """The category of warnings about a problem that does not stop the run but needs the user's attention."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the advice for an unknown name: the closest known name, or the list of all known names."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else "choose from " + ", ".join(f"`{n}`" for n in names)


def how_it_ended(code: int) -> str:
    """Describe how a child process ended, from its return code as `subprocess` gives it.

    Examples: ``ended with code 1``, ``was ended by SIGTERM``, and ``was ended by SIGKILL (code 137)`` if a shell or
    bubblewrap reports the signal of its own child process as an exit code.
    """
    if code < 0:
        return f"was ended by {_signal_name(-code)}"
    if code > 128 and (name := _signal_name(code - 128)).startswith("SIG"):
        return f"was ended by {name} (code {code})"
    return f"ended with code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def shortened(text: str, most: int = 60) -> str:
    """Return a text for use in a message: quoted, with control characters escaped, at most `most` characters long."""
    shown = repr(text)
    return shown if len(shown) <= most else shown[: most - 3] + "..."


ERROR_PREFIX = "egpo: "
"""The beginning of each line that the command prints about an error."""
NOTICE_PREFIX = "egpo: notice: "
STOPPING = "egpo: stopping after saving; send the signal again to stop at once"
NO_ERRORS = (NOTICE_PREFIX, STOPPING)
"""Lines that begin like an error and are none."""
_shown_topics: set[str] = set()


def warn_once(topic: str, message: str) -> None:
    """Issue a warning, once per topic. Python's own filter would repeat a message whose numbers change every step."""
    if topic not in _shown_topics:
        warnings.warn(message, EgpoWarning, stacklevel=3)
        _shown_topics.add(topic)


def notify_once(message: str) -> None:
    """Print a notice on stderr, unless the same notice was printed before."""
    if message not in _shown_topics:
        print(f"{NOTICE_PREFIX}{message}", file=sys.stderr)
        _shown_topics.add(message)


def forget_warnings() -> None:
    """Forget which warnings and notices were shown, so that each can be shown again in the next run."""
    _shown_topics.clear()


def _known_signals(*names: str) -> tuple[signal.Signals, ...]:
    """Return those of the signals that this system has: Windows has only some."""
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


USER_STOPS = _known_signals("SIGINT", "SIGTERM", "SIGQUIT")
"""Signals from a user. The first one stops a run after saving a checkpoint, a second one stops it at once."""
NOTICES = _known_signals("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
"""Signals from a terminal that is closed, or from a scheduler shortly before its time limit. They stop a run after
saving a checkpoint. A second one does nothing, because the terminal and its shell may both send one."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a run, without those that this process ignores, such as SIGHUP under `nohup`."""
    first = (signal.SIGINT, signal.SIGTERM)
    others = (signum for signum in (*USER_STOPS, *NOTICES) if signum not in first)
    return (*first, *(signum for signum in others if signal.getsignal(signum) != signal.SIG_IGN))


class RunInterruptedError(EgpoError):
    """The exception for a run that was stopped by a signal. Its exit code is 128 + the number of the signal, as shells
    expect: 130 for SIGINT, 143 for SIGTERM."""

    def __init__(self, signum: int, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what, where=where, fix=fix)
        self.exit_code = 128 + signum
