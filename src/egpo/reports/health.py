"""What the health rules said of all runs, by rule: the dangers first."""

from collections.abc import Sequence
from dataclasses import dataclass

from egpo.reports.run import ReportedRun
from egpo.runs.health import Note
from egpo.runs.rules import Severity


@dataclass(frozen=True)
class Said:
    """One run's note."""

    run: ReportedRun
    note: Note


@dataclass(frozen=True)
class RuleNotes:
    """A rule, its advice, and each run that it spoke of."""

    rule: str
    severity: Severity
    advice: str
    said: Sequence[Said]


def notes_by_rule(runs: Sequence[ReportedRun]) -> list[RuleNotes]:
    groups: dict[tuple[str, Severity, str], list[Said]] = {}
    for run in runs:
        for note in run.notes:
            groups.setdefault((note.rule, note.severity, note.advice), []).append(Said(run, note))
    return sorted((RuleNotes(*key, said) for key, said in groups.items()), key=lambda rule: rule.severity != "danger")
