"""The tables of a report: progress of each run, health warnings by rule, settings that differ, and provenance."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from egpo.reports.curves import Curve, ReportedRun, is_validation
from egpo.runs.differences import config_differences
from egpo.runs.formatting import format_duration, format_number, format_percent
from egpo.runs.health import Note, Severity
from egpo.runs.metric_table import ACCURACY, INFORMATIVE, LOSS, REWARD, STEP_S, TOKENS_PER_S
from egpo.runs.provenance import Git, Provenance
from egpo.runs.removed import read_removed

WINDOW = 10
"""Number of steps over which the first and the last value of a noisy metric are averaged."""


@dataclass(frozen=True)
class Change:
    """A figure at the beginning and at the end of a run, as text."""

    old: str
    new: str


@dataclass(frozen=True)
class OverviewRow:
    """One run: what it is, its progress, and one change per column; None if the run lacks the figure."""

    run: ReportedRun
    kind: str
    progress: str
    under_way: bool
    changes: Sequence[Change | None]
    wall: str
    speed: str


@dataclass(frozen=True)
class Overview:
    """The table of runs. `heads` names the columns of changes: only figures that at least one run has."""

    heads: Sequence[str]
    rows: Sequence[OverviewRow]


@dataclass(frozen=True)
class OverviewFigure:
    """A metric of the overview, and whether it is shown in percent."""

    metric: str
    percent: bool = False


_FIGURES = {
    "Reward": OverviewFigure(REWARD),
    "Training accuracy": OverviewFigure(ACCURACY, percent=True),
    "Loss": OverviewFigure(LOSS),
    "Informative groups": OverviewFigure(INFORMATIVE, percent=True),
}


def overview(runs: Sequence[ReportedRun]) -> Overview:
    """Return the table of runs."""
    changes = [training_changes(run) for run in runs]
    heads = [head for head in ("Validation accuracy", *_FIGURES) if any(head in found for found in changes)]
    rows = [_row(run, [found.get(head) for head in heads]) for run, found in zip(runs, changes, strict=True)]
    return Overview(heads, rows)


def training_changes(run: ReportedRun) -> dict[str, Change]:
    """Return the figures of one run at its beginning and its end, by the names of the overview's columns."""
    found = {"Validation accuracy": _validation(run)}
    found |= {head: _windows(run.curves.get(shown.metric), shown.percent) for head, shown in _FIGURES.items()}
    return {head: change for head, change in found.items() if change}


def _row(run: ReportedRun, changes: Sequence[Change | None]) -> OverviewRow:
    planned, last = run.stored.planned_steps, run.stored.last_step
    steps_s, speeds = run.curves.get(STEP_S), run.curves.get(TOKENS_PER_S)
    return OverviewRow(
        run=run,
        kind=_kind(run),
        progress=f"{last} of {planned}" if planned else str(last),
        under_way=bool(planned and last < planned),
        changes=changes,
        wall=format_duration(sum(steps_s.values)) if steps_s else "–",
        speed=f"{fmean(speeds.values):,.0f}" if speeds else "–",
    )


def _kind(run: ReportedRun) -> str:
    """Return estimator and task, as `egpo on countdown`; for a supervised run its data, as `sft on data.parquet`."""
    if data := run.stored.setting("data", "path"):
        return f"sft on {data}"
    parts = [run.stored.setting("algorithm", "estimator"), run.stored.setting("task", "name")]
    return " on ".join(part for part in parts if part) or "–"


def _windows(curve: Curve | None, percent: bool) -> Change | None:
    """Return the means over the first and the last `WINDOW` steps; over the halves of a shorter run."""
    if curve is None:
        return None
    width = max(1, min(WINDOW, len(curve.values) // 2))
    return _change(fmean(curve.values[:width]), fmean(curve.values[-width:]), percent)


def _validation(run: ReportedRun) -> Change | None:
    """Return the mean accuracy over data sources, at the first and at the last validation."""
    curves = [curve for name, curve in run.curves.items() if is_validation(name)]
    if not curves:
        return None
    return _change(fmean(curve.values[0] for curve in curves), fmean(curve.values[-1] for curve in curves), True)


def _change(old: float, new: float, percent: bool) -> Change:
    shown = format_percent if percent else format_number
    return Change(shown(old), shown(new))


@dataclass(frozen=True)
class RunNote:
    """A health warning, and the run that it is about."""

    run: ReportedRun
    note: Note


@dataclass(frozen=True)
class RuleNotes:
    """A health rule, its advice, and the warnings that it gave for all runs."""

    rule: str
    severity: Severity
    advice: str
    notes: Sequence[RunNote]


def notes_by_rule(runs: Sequence[ReportedRun]) -> list[RuleNotes]:
    """Group the health warnings of all runs by rule, the severe ones first."""
    groups: dict[tuple[str, Severity, str], list[RunNote]] = {}
    for run in runs:
        for note in run.stored.notes:
            groups.setdefault((note.rule, note.severity, note.advice), []).append(RunNote(run, note))
    return sorted((RuleNotes(*key, notes) for key, notes in groups.items()), key=lambda rule: rule.severity != "danger")


@dataclass(frozen=True)
class SettingRow:
    """A dotted key of the config, or a fact of the provenance, and its value in each run."""

    key: str
    values: Sequence[str]

    @property
    def is_shared(self) -> bool:
        """Whether all runs have the same value."""
        return len(set(self.values)) == 1


def settings_table(runs: Sequence[ReportedRun]) -> list[SettingRow]:
    """Return the settings that differ between the runs, without `name` and `runs`; empty for a single run."""
    first, *others = runs
    found: dict[str, list[str]] = {}
    for place, run in enumerate(others, 1):
        for difference in config_differences(first.stored.config_yaml, run.stored.config_yaml):
            values = found.setdefault(difference.key, [difference.old] * len(runs))
            values[place] = difference.new
    return [SettingRow(key, values) for key, values in found.items() if key not in ("name", "runs")]


def origin_table(runs: Sequence[ReportedRun]) -> list[SettingRow]:
    """Return a row for each fact that at least one run recorded in its provenance."""
    facts = [{**(_facts(run.stored.provenance) if run.stored.provenance else {}), **_removed(run)} for run in runs]
    names = list(dict.fromkeys(name for found in facts for name in found))
    return [SettingRow(name, [found.get(name, "–") for found in facts]) for name in names]


def _facts(provenance: Provenance) -> dict[str, str]:
    start, machine = provenance.start, provenance.start.hardware
    facts = {
        "started": start.time,
        "command": " ".join(start.command),
        "seed": str(provenance.seed),
        "commit": _commit(start.git),
        "machine": f"{machine.gpu or machine.cpu}, {machine.cores} cores, {machine.memory_gib} GiB",
        "threads": str(machine.threads or "–"),
        "sandbox": start.sandbox or "–",
        "versions": ", ".join(f"{name} {version}" for name, version in start.versions.items()),
        "resumed": ", ".join(f"after step {launch.after_step}" for launch in provenance.resumptions) or "–",
    }
    return facts | {f"data: {name}": digest for name, digest in provenance.data.items()}


def _removed(run: ReportedRun) -> dict[str, str]:
    removed = read_removed(run.stored.folder.removed)
    return {} if removed is None else {"removed": str(removed)}


def _commit(git: Git | None) -> str:
    return "–" if git is None else git.commit + (" with changes" if git.dirty else "")
