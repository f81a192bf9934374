"""Where the runs come from: what is needed to make each again."""

from collections.abc import Sequence

from egpo.reports.run import ReportedRun
from egpo.reports.settings import SettingRow
from egpo.runs.machine import Git
from egpo.runs.provenance import Provenance


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
