"""The speed board as tables, from the records that benchmarks/speed_board.py wrote.

Records are lines of JSON, one per measurement, of four kinds:

    round    one contender in one round (round 0 is the warm-up): seconds by stage, tokens, GiB
    limit    the bytes and operations that a cell cannot avoid, at the rates of a copy and a product in the same process
    setup    versions and start of a contender, and how its set-up differs from its default installation
    failure  a contender that stopped, with the last lines that it printed

A contender that was not measured in a cell has an empty row and a reason. Nothing is computed from another cell.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from interleaved import Ratio, Timing

CELLS = {
    "512": "0.6B, 16 prompts x 16 responses of exactly 512 tokens",
    "64-1024": "0.6B, 16 prompts x 16 responses of 64 to 1,024 tokens",
    "1.7B": "1.7B, 16 prompts x 16 responses of exactly 512 tokens",
    "4B": "4B, 16 prompts x 16 responses of exactly 512 tokens",
    "32-rows": "0.6B, 2 prompts x 16 responses of exactly 512 tokens",
    "1024-rows": "0.6B, 64 prompts x 16 responses of exactly 512 tokens",
    "4096-tokens": "0.6B, 16 prompts x 16 responses of exactly 4,096 tokens",
    "multi-turn": "0.6B, episodes of several turns with tools",
}
"""Cells of the board. The first two are the core; every other one differs from `512` in one factor."""

OURS = "egpo"
CONTENDERS = {
    OURS: "grpo, every token with log-probability and exact entropy",
    "vLLM": "rollout alone, with the log-probabilities of the sampled tokens",
    "vLLM, no log-probabilities": "rollout alone",
    "TRL, vLLM colocated": "GRPOTrainer, use_vllm, vllm_mode=colocate; rollout with the transfer of the weights",
    "TRL, generate": "GRPOTrainer",
    "verl": "`egpo train` with engine=verl; rollout with the transfer of the weights",
    "unsloth": "",
}
PART_OF = {
    OURS: "egpo",
    "vLLM": "vllm",
    "vLLM, no log-probabilities": "vllm",
    "TRL, vLLM colocated": "trl-vllm",
    "TRL, generate": "trl",
    "verl": "verl",
}
"""The part of speed_board.py that measures a contender."""

REASONS = {
    "multi-turn": "the board's random weights make no tool calls; `python benchmarks/episodes.py --device cuda` "
    "measures episodes of egpo-tiny after a cold start beside TRL's environment_factory; it was not run on a GPU",
    "unsloth": "unsloth 2026.10.9 requires TRL 1.15 at most and datasets below 5, and this board has TRL 1.16 and "
    "datasets 5.2; it also needs xformers, bitsandbytes, torchao and cut_cross_entropy, built for the same torch",
}
"""Why a cell or a contender is never measured here."""

Record = dict[str, object]


def read(paths: Sequence[Path]) -> list[Record]:
    """Return the records of several files. The last line of a file may be cut off."""
    records = []
    for path in paths:
        for line in path.read_text().splitlines():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return records


@dataclass(frozen=True)
class Row:
    """One contender in one cell: its measured rounds, or the reason why there are none."""

    contender: str
    rounds: list[Record]
    ours: list[Record]
    """Our rounds to compare with: those of the same process, or of our own process if both do not fit into memory."""
    reason: str

    def timing(self, stage: str) -> Timing | None:
        if not self.rounds or any(record.get(stage) is None for record in self.rounds):
            return None
        return Timing([record[stage] for record in self.rounds])

    def over_ours(self, stage: str) -> Ratio | None:
        """Return this contender's seconds over ours, round by round."""
        if self.contender == OURS or not self.ours or self.timing(stage) is None:
            return None
        return Ratio([record[stage] / ours[stage] for record, ours in zip(self.rounds, self.ours, strict=True)])


def rows_of(cell: str, records: Sequence[Record]) -> list[Row]:
    """Return one row per contender, in the order of the table CONTENDERS."""
    measured = [r for r in records if r["kind"] == "round" and r["cell"] == cell and r["round"] > 0]
    return [_row(cell, contender, measured, records) for contender in CONTENDERS]


def _row(cell: str, contender: str, measured: Sequence[Record], records: Sequence[Record]) -> Row:
    rounds = [record for record in measured if record["contender"] == contender]
    ours = {(r["sitting"], r["part"], r["round"]): r for r in measured if r["contender"] == OURS}
    pairs = []
    for record in rounds:
        before = ours.get((record["sitting"], PART_OF[OURS], record["round"]))
        pairs.append(ours.get((record["sitting"], record["part"], record["round"]), before))
    beside = pairs if all(pairs) else []
    return Row(contender, rounds, beside, "" if rounds else _reason(cell, contender, records))


def _reason(cell: str, contender: str, records: Sequence[Record]) -> str:
    if failure := _failure(cell, contender, records):
        return f"stopped: {failure}"
    if cell in REASONS:
        return REASONS[cell]
    if contender in REASONS:
        return REASONS[contender]
    part = "" if contender == OURS else f" --parts {PART_OF[contender]}"
    return f"not run: speed_board.py --cell {cell}{part}"


def _failure(cell: str, contender: str, records: Sequence[Record]) -> str:
    """Return the reason of a contender's last failure in a cell, or nothing."""
    failures = [record for record in records if record["kind"] == "failure"]
    found = [record for record in failures if cell in record["cells"] and contender in record["contenders"]]
    return found[-1]["reason"].rstrip(".") if found else ""


HEADER = (
    "contender", "rounds", "rollout, s", "between, s", "update, s", "step, s", "tokens/s", "GiB",
    "rollout, times limit", "step, times limit", "rollout, times ours", "step, times ours",
)  # fmt: skip


def cells_of_table(cell: str, records: Sequence[Record]) -> list[list[str]]:
    """Return the text of every row of a cell's table: the limit first, then the contenders."""
    limits = [record for record in records if record["kind"] == "limit" and record["cell"] == cell]
    lines = []
    if limits:
        rollout, update = (Timing([limit[stage] for limit in limits]).median_s for stage in ("rollout", "update"))
        lines.append(["limit", "", f"{rollout:.2f}", "", f"{update:.2f}", f"{rollout + update:.2f}"] + [""] * 6)
    for row in rows_of(cell, records):
        if not row.rounds:
            lines.append([row.contender] + [""] * (len(HEADER) - 1))
            continue
        stages = [_spread(row.timing(stage)) for stage in ("rollout", "between", "update", "step")]
        whole = row.timing("step") or row.timing("rollout")
        rate = f"{row.rounds[0]['tokens'] / whole.median_s:,.0f}"
        memory = f"{max(record['gib'] for record in row.rounds):.1f}"
        against = ["", ""]
        if limits:
            parts = [(row.timing("rollout"), rollout), (row.timing("step"), rollout + update)]
            against = [f"{timing.median_s / limit:.2f}" if timing else "" for timing, limit in parts]
        ratios = [str(row.over_ours(stage) or "") for stage in ("rollout", "step")]
        lines.append([row.contender, str(len(row.rounds)), *stages, rate, memory, *against, *ratios])
    return lines


def _spread(timing: Timing | None) -> str:
    if timing is None:
        return ""
    low, high = min(timing.seconds), max(timing.seconds)
    return (
        f"{timing.median_s:.2f}"
        if f"{low:.2f}" == f"{high:.2f}"
        else f"{timing.median_s:.2f} ({low:.2f} to {high:.2f})"
    )


def notes_of(cell: str, records: Sequence[Record]) -> list[str]:
    """Return the sentences below a cell's table: reasons for empty rows, and peers that are faster than ours."""
    rows = rows_of(cell, records)
    notes = [f"{row.contender} is empty: {row.reason}." for row in rows if not row.rounds]
    for row in rows:
        if row.rounds and (failure := _failure(cell, row.contender, records)):
            notes.append(f"{row.contender} stopped after {len(row.rounds)} rounds: {failure}.")
        for stage in ("rollout", "step"):
            ratio = row.over_ours(stage)
            if ratio is not None and ratio.median < 1:
                notes.append(f"{row.contender} is faster than egpo here: its {stage} takes {ratio} of egpo's time.")
        if row.ours and any(record["part"] != ours["part"] for record, ours in zip(row.rounds, row.ours, strict=True)):
            notes.append(f"{row.contender} ran in a process of its own, after ours: both do not fit into memory.")
    return notes


def setups(records: Iterable[Record]) -> list[str]:
    """Return versions, starts and differences from the default installation, one line per contender."""
    lines: dict[str, str] = {}
    for record in records:
        if record["kind"] == "setup":
            start = f" Start: {record['start_s']:.0f} s." if record.get("start_s") is not None else ""
            lines[record["contender"]] = f"{record['contender']}: {'; '.join(record['differences'])}.{start}"
    return list(lines.values())


def machines(records: Iterable[Record]) -> list[str]:
    """Return the machines and versions of all sittings."""
    found = [record["versions"] for record in records if record["kind"] == "setup"]
    return list(
        dict.fromkeys(", ".join(f"{name} {version}" for name, version in versions.items()) for versions in found)
    )


def markdown(records: Sequence[Record]) -> str:
    """Return the board for docs/speed.md."""
    lines = [*(f"{machine}." for machine in machines(records)), ""]
    for cell in CELLS:
        if all(row.reason.startswith("not run: ") or not row.rounds for row in rows_of(cell, records)):
            continue
        lines += [f"### {CELLS[cell]}", "| " + " | ".join(HEADER) + " |", "|---" * len(HEADER) + "|"]
        lines += ["| " + " | ".join(line) + " |" for line in cells_of_table(cell, records)]
        lines += ["", *(f"- {note}" for note in notes_of(cell, records)), ""]
    empty = {cell: _cell_reason(cell, records) for cell in CELLS}
    lines += ["### Cells without a measurement"] + [f"- {CELLS[cell]}: {why}." for cell, why in empty.items() if why]
    lines += ["", "### How each set-up differs from its default installation"]
    lines += [f"- {line}" for line in setups(records)]
    return "\n".join(lines) + "\n"


def _cell_reason(cell: str, records: Sequence[Record]) -> str:
    """Return why a cell has no measurement, or nothing if it has one."""
    rows = rows_of(cell, records)
    if any(row.rounds for row in rows):
        return ""
    return rows[0].reason


def show(records: Sequence[Record], console: Console) -> None:
    """Print every cell, measured or empty, and the set-ups."""
    for machine in machines(records):
        console.print(machine)
    for cell, title in CELLS.items():
        if why := _cell_reason(cell, records):
            console.print(f"\n{cell}: {title}\n  empty: {why}")
            continue
        table = Table(*HEADER, title=f"{cell}: {title}", title_justify="left")
        for line in cells_of_table(cell, records):
            table.add_row(*line)
        console.print(table)
        for note in notes_of(cell, records):
            console.print(f"  {note}")
    for line in setups(records):
        console.print(f"- {line}")
