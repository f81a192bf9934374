"""The table that benchmarks/scaling.py prints."""

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from interleaved import Ratio, Timing


@dataclass(frozen=True)
class Cost:
    """The cost of one job: seconds by stage, the limit and the peer to compare with, and MiB."""

    label: str
    new_tokens: int
    sample: Timing
    update: Timing
    step: Timing
    limit: Timing
    trl: Timing | None
    beyond_mib: float
    peak_mib: float

    def cells(self) -> list[str]:
        seconds = [f"{timing.median_s:.2f}" for timing in (self.sample, self.update, self.step)]
        tokens = f"{self.new_tokens / self.step.median_s:,.0f}", f"{self.step.median_s / self.new_tokens * 1e6:.1f}"
        against_trl = _short(self.trl.over(self.step)) if self.trl else ""
        memory = _size(self.beyond_mib), _size(self.peak_mib)
        return [self.label, *seconds, *tokens, _short(self.step.over(self.limit)), against_trl, *memory]


def _size(mebibytes: float) -> str:
    return f"{mebibytes:.0f} MiB" if mebibytes < 1024 else f"{mebibytes / 1024:.1f} GiB"


def _short(ratio: Ratio) -> str:
    return f"{ratio.median:.2f}"


def show(sweep: str, costs: list[Cost], console: Console) -> None:
    table = Table(sweep, "sample, s", "update, s", "step, s", "tokens/s", "us/token", "times the limit", "TRL takes",
                  "beyond", "peak")  # fmt: skip
    for cost in costs:
        table.add_row(*cost.cells())
    console.print(table)
