"""Where the configs of several runs differ: only that, one row a key."""

from collections.abc import Sequence
from dataclasses import dataclass

from egpo.reports.run import ReportedRun
from egpo.runs.differences import config_differences


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
