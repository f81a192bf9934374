"""The exceptions and warnings of egpo, and the signals that stop a run.

Every message has one format, where: what is wrong; what to do:
``recipes/countdown.yaml [update]: unknown key `clp`; did you mean `clip`?``
"""

import signal
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: `what` is wrong, `where`, and how to `fix` it."""

    what: str
    where: str = ""
    fix: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f"; {self.fix}" if self.fix else ""
        return f"{place}{self.what}{advice}"


class EgpoError(Exception):
    """The base class of all exceptions, and a failure of egpo or of the machine: exit code 1."""

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.faults = [Fault(what, where, fix)]
        super().__init__(str(self.faults[0]))

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the faults when pickled: process pools and Ray send exceptions between processes."""
        return _revived, (type(self), self.faults)


class InputError(EgpoError, ValueError):
    """An input of the user that cannot be used: exit code 2."""

    exit_code = 2


class ConfigError(InputError):
    """A recipe or an override with faults. Contains every fault found, not only the first."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = list(faults)
        Exception.__init__(self, "\n".join(map(str, self.faults)))


def _revived(kind: type[EgpoError], faults: list[Fault]) -> EgpoError:
    error = kind.__new__(kind, "\n".join(map(str, faults)))
    error.faults = faults
    return error


class EgpoWarning(UserWarning):
    """A problem that does not stop the run, but that the user should look at."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the advice for an unknown name: the closest known name, or the list of all."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else "choose from " + ", ".join(f"`{n}`" for n in names)


def how_it_ended(code: int) -> str:
    """Describe how a child process ended, from its return code as `subprocess` gives it.

    ``ended with code 1``, ``was ended by SIGTERM``; ``was ended by SIGKILL (code 137)`` where a shell or bubblewrap
    reports the signal of its own child.
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
    """Return a text for a message: quoted, with control characters escaped, at most `most` characters."""
    shown = repr(text)
    return shown if len(shown) <= most else shown[: most - 3] + "..."


_shown_topics: set[str] = set()


def warn_once(topic: str, message: str) -> None:
    """Warn once per topic. Python's own filter would repeat a message whose numbers change with every batch."""
    if topic not in _shown_topics:
        warnings.warn(message, EgpoWarning, stacklevel=3)
        _shown_topics.add(topic)


def notify_once(message: str) -> None:
    """Print a notice on stderr, the first time only."""
    if message not in _shown_topics:
        print(f"egpo: notice: {message}", file=sys.stderr)
        _shown_topics.add(message)


def forget_warnings() -> None:
    """Allow every topic to warn again, as at the start of a run."""
    _shown_topics.clear()


USER_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
"""Signals from a user. The first one stops a run after saving a checkpoint, a second one stops it at once."""
NOTICES = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals from a closing terminal, or from a scheduler before its time limit. They stop a run after saving a
checkpoint. They may arrive several times (from the terminal and from its shell), so a second one does nothing."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a run. Ignored signals stay ignored: under `nohup` a run outlives its terminal."""
    free = (signum for signum in (signal.SIGQUIT, *NOTICES) if signal.getsignal(signum) != signal.SIG_IGN)
    return (signal.SIGINT, signal.SIGTERM, *free)


class RunInterruptedError(EgpoError):
    """A run that was stopped by a signal: exit code 128 + the signal's number (130 for SIGINT, 143 for SIGTERM), as
    shells expect."""

    def __init__(self, signum: int, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what, where=where, fix=fix)
        self.exit_code = 128 + signum
