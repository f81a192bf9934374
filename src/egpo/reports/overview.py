"""What the health rules said of all runs, by rule: the dangers first.

Where the configs of several runs differ: only that, one row a key.

Where the runs come from: what is needed to make each again.

The runs in one table: what each is, how far it is, where it began and where it stands.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from egpo.reports.run import Curve, ReportedRun
from egpo.runs.differences import config_differences
from egpo.runs.formatting import format_duration, format_number, format_percent
from egpo.runs.health import Note, Severity
from egpo.runs.metric_table import ACCURACY, INFORMATIVE, LOSS, REWARD, STEP_S, TOKENS_PER_S, is_validation_accuracy
from egpo.runs.provenance import Git, Provenance


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


@dataclass(frozen=True)
class SettingRow:
    """A dotted key and its value in each run, as YAML would show it."""

    key: str
    values: Sequence[str]

    @property
    def is_shared(self) -> bool:
        """Whether all runs have the same value."""
        return len(set(self.values)) == 1


def settings_table(runs: Sequence[ReportedRun]) -> list[SettingRow]:
    """Empty for one run, and for runs with equal configs. Where a run lies is no difference of interest."""
    first, *others = runs
    found: dict[str, list[str]] = {}
    for place, run in enumerate(others, 1):
        for difference in config_differences(first.config_yaml, run.config_yaml):
            values = found.setdefault(difference.key, [difference.old] * len(runs))
            values[place] = difference.new
    return [SettingRow(key, values) for key, values in found.items() if key not in ("name", "runs")]


def origin_table(runs: Sequence[ReportedRun]) -> list[SettingRow]:
    """One row for each fact that some run recorded; empty where none did."""
    facts = [_facts(run.provenance) if run.provenance else {} for run in runs]
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


def _commit(git: Git | None) -> str:
    return "–" if git is None else git.commit + (" with changes" if git.dirty else "")


WINDOW = 10
"""Steps whose mean stands for the beginning and the end of a run's noisy figures."""


@dataclass(frozen=True)
class Change:
    """From the beginning to the end, as text."""

    old: str
    new: str


@dataclass(frozen=True)
class OverviewRow:
    """A change is None where the run has no such figure."""

    run: ReportedRun
    kind: str
    progress: str
    under_way: bool
    changes: Sequence[Change | None]
    wall: str
    speed: str


@dataclass(frozen=True)
class Overview:
    """`heads` are the names of the rows' changes: only figures that some run has."""

    heads: Sequence[str]
    rows: Sequence[OverviewRow]


@dataclass(frozen=True)
class Figure:
    """A metric, and whether it is read in percent."""

    metric: str
    percent: bool = False


_FIGURES = {
    "Reward": Figure(REWARD),
    "Training accuracy": Figure(ACCURACY, percent=True),
    "Loss": Figure(LOSS),
    "Informative groups": Figure(INFORMATIVE, percent=True),
}


def overview(runs: Sequence[ReportedRun]) -> Overview:
    columns = {"Validation accuracy": [_validation(run) for run in runs]}
    for head, shown in _FIGURES.items():
        columns[head] = [_windows(run.curves.get(shown.metric), shown.percent) for run in runs]
    columns = {head: changes for head, changes in columns.items() if any(changes)}
    rows = [_row(run, [changes[run.place] for changes in columns.values()]) for run in runs]
    return Overview(list(columns), rows)


def _row(run: ReportedRun, changes: Sequence[Change | None]) -> OverviewRow:
    planned, last = run.planned_steps, run.last_step
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
    """`egpo on countdown`; of a supervised run its data; of a config of another shape, as much as can be told."""
    if data := _named(run.config, "data", "path"):
        return f"sft on {data}"
    parts = [_named(run.config, "algorithm", "estimator"), _named(run.config, "task", "name")]
    return " on ".join(part for part in parts if part) or "–"


def _named(config: Mapping[str, Any], section: str, key: str) -> str:
    inner = config.get(section)
    return str(inner.get(key, "")) if isinstance(inner, dict) else ""


def _windows(curve: Curve | None, percent: bool) -> Change | None:
    """The means of the first and of the last steps; of a short run they are its halves."""
    if curve is None:
        return None
    width = max(1, min(WINDOW, len(curve.values) // 2))
    return _change(fmean(curve.values[:width]), fmean(curve.values[-width:]), percent)


def _validation(run: ReportedRun) -> Change | None:
    """The mean over sources, at the first validation and at the last."""
    curves = [curve for name, curve in run.curves.items() if is_validation_accuracy(name)]
    if not curves:
        return None
    return _change(fmean(curve.values[0] for curve in curves), fmean(curve.values[-1] for curve in curves), True)


def _change(old: float, new: float, percent: bool) -> Change:
    shown = format_percent if percent else format_number
    return Change(shown(old), shown(new))
