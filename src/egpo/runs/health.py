"""Rules that watch a run and speak once each; what they said stands in `health.jsonl`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from egpo.errors import InputError
from egpo.runs.history import History
from egpo.runs.json_lines import Line, LineStream, read_lines
from egpo.runs.rules import RULES, Rule, Severity


@dataclass(frozen=True)
class Note:
    """What a rule said, when, and what to try."""

    step: int
    rule: str
    severity: Severity
    message: str
    advice: str

    def __str__(self) -> str:
        return f"{self.severity} at step {self.step} ({self.rule}): {self.message}; {self.advice}"


class Health:
    """Judges each step by all steps so far. A rule speaks once a run.

    `history` are the lines of `metrics.jsonl` and `notes` those of `health.jsonl`, of a run that is resumed: it then
    says what it would have said without the interruption.
    """

    def __init__(
        self, rules: Sequence[Rule] = RULES, history: Iterable[Mapping[str, Any]] = (), notes: Iterable[Note] = ()
    ) -> None:
        self._silent = list(rules)
        self._history = History()
        for line in history:
            self._history.add(line["step"], {name: value for name, value in line.items() if name != "step"})
        self._hush({note.rule for note in notes})

    def observe(self, step: int, metrics: Mapping[str, float]) -> list[Note]:
        """The new notes, in the order of the rules. Steps must come in order: ValueError."""
        self._history.add(step, metrics)
        found = [(rule, rule.check(self._history)) for rule in self._silent]
        notes = [Note(step, rule.name, rule.severity, message, rule.advice) for rule, message in found if message]
        self._hush({note.rule for note in notes})
        return notes

    def _hush(self, names: set[str]) -> None:
        self._silent = [rule for rule in self._silent if rule.name not in names]


class NoteStream:
    """`health.jsonl`: one note a line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = LineStream(path)

    def append(self, note: Note) -> None:
        self._lines.append(asdict(note))

    def sync(self) -> None:
        self._lines.sync()

    def forget_after(self, step: int) -> None:
        """Keep the notes of steps up to `step`, and not what was cut off in the middle."""
        self._lines.cut(self.size_after(step))

    def size_after(self, step: int) -> int:
        """The bytes that hold the notes of steps up to `step`."""
        lines = list(read_lines(self.path)) if self.path.exists() else []
        kept = [line.end for line in lines if _as_note(line, self.path).step <= step]
        return kept[-1] if kept else 0


def read_notes(path: Path) -> list[Note]:
    """None where nothing was ever said: the file is then not there."""
    return [_as_note(line, path) for line in read_lines(path)] if path.exists() else []


def _as_note(line: Line, path: Path) -> Note:
    where = f"{path}, line {line.number}"
    try:
        note = Note(**line.value)
    except TypeError as error:
        raise InputError(f"no health note ({error})", where=where, fix="the file is damaged") from error
    if not isinstance(note.step, int):
        raise InputError(f"no health note (its step is {note.step!r:.40})", where=where, fix="the file is damaged")
    return note
