"""One exception tree, one message format: where, what is wrong, what to do.

``recipes/countdown.yaml [update]: unknown key `clp`; did you mean `clip`?``

A run that somebody asked to end: a user, a terminal that closes, a scheduler.
"""

import signal
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: `what`, at `where`, mended by `fix`."""

    what: str
    where: str = ""
    fix: str = ""

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f"; {self.fix}" if self.fix else ""
        return f"{place}{self.what}{advice}"


class EgpoError(Exception):
    """The root of the tree, and a failure of ours or of the machine: exit code 1."""

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.faults = [Fault(what, where, fix)]
        super().__init__(str(self.faults[0]))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled whole: process pools and Ray send exceptions about."""
        return _revived, (type(self), self.faults)


class InputError(EgpoError, ValueError):
    """What the user gave cannot be used: exit code 2."""

    exit_code = 2


class ConfigError(InputError):
    """A recipe or an override is wrong. Holds every fault found, not only the first."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = list(faults)
        Exception.__init__(self, "\n".join(map(str, self.faults)))


def _revived(kind: type[EgpoError], faults: list[Fault]) -> EgpoError:
    error = kind.__new__(kind, "\n".join(map(str, faults)))
    error.faults = faults
    return error


class EgpoWarning(UserWarning):
    """The run can go on, and somebody should look."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The advice for a name nobody knows: the closest right one, or all of them."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else "choose from " + ", ".join(f"`{n}`" for n in names)


def how_it_ended(code: int) -> str:
    """Say how a child process ended, by its return code as `subprocess` gives it.

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
    """The text as a message shows it: quoted, control characters escaped, cut after `most` characters."""
    shown = repr(text)
    return shown if len(shown) <= most else shown[: most - 3] + "..."


_said: set[str] = set()


def warn_once(topic: str, message: str) -> None:
    """Warn the first time only: the figures in a message change with every batch, so Python would repeat it."""
    if topic not in _said:
        warnings.warn(message, EgpoWarning, stacklevel=3)
        _said.add(topic)


def notify_once(message: str) -> None:
    """Print a notice on stderr, the first time only."""
    if message not in _said:
        print(f"egpo: notice: {message}", file=sys.stderr)
        _said.add(message)


def forget_warnings() -> None:
    """Let every topic speak again, as at the start of a run."""
    _said.clear()


REPEATABLE = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
"""The first ends a run in good order, the second at once."""
NOTICES = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""A terminal that closes, and a scheduler's warning before its time limit: they end a run in good order. They may come
several times (from the terminal and from its shell), so a further one does nothing."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """Those that end a run. What is ignored stays ignored: `nohup` has a run outlive its terminal."""
    free = (signum for signum in (signal.SIGQUIT, *NOTICES) if signal.getsignal(signum) != signal.SIG_IGN)
    return (signal.SIGINT, signal.SIGTERM, *free)


class RunInterruptedError(EgpoError):
    """The run has ended because somebody asked for it: exit code 128 and the signal's number (130 for
    SIGINT, 143 for SIGTERM), as shells expect."""

    def __init__(self, signum: int, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what, where=where, fix=fix)
        self.exit_code = 128 + signum
