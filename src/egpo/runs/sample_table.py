"""The table of sample responses that a run sends to its trackers if `watch.samples` is set: which rows, which columns.

The rows come from `rollouts/step_N.jsonl`, so both engines send the same table whenever they write rollouts. The table
is bounded: at most `watch.samples` rows for a step, at most `MOST_CHARACTERS` characters in a cell.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from egpo.runs.dump import RolloutRecord, read_dump

Cell = str | float | int | bool | None
MOST_CHARACTERS = 2_000
"""A longer text keeps its first and its last half of this: a response begins with its approach and ends with its
answer."""

_COLUMNS: dict[str, Callable[[RolloutRecord], Cell]] = {
    "step": lambda record: record.step,
    "problem": lambda record: bounded(record.problem),
    "sample": lambda record: record.sample,
    "reward": lambda record: None if record.failed else record.score,
    "correct": lambda record: None if record.failed else record.acc,
    "reason": lambda record: bounded(record.reason),
    "advantage": lambda record: record.advantage,
    "tokens": lambda record: record.num_tokens,
    "prompt": lambda record: bounded(record.input),
    "response": lambda record: bounded(record.output),
}
"""Column -> its value. A response that the checker failed to judge has neither reward nor `correct`."""


@dataclass(frozen=True)
class SampleTable:
    """Rows of equal columns, as every tracker takes them."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def read_sample_table(path: Path, num_rows: int) -> SampleTable:
    """Return the table of a step's rollouts; without rows if the step wrote none."""
    return sample_table(read_dump(path) if path.is_file() else (), num_rows)


def sample_table(records: Iterable[RolloutRecord], num_rows: int) -> SampleTable:
    """Return the table of at most `num_rows` responses."""
    chosen = chosen_records(list(records), num_rows)
    return SampleTable(tuple(_COLUMNS), tuple(tuple(cell(one) for cell in _COLUMNS.values()) for one in chosen))


def chosen_records(records: Sequence[RolloutRecord], num_rows: int) -> list[RolloutRecord]:
    """Return the first response to each problem, then the second, and so on, up to `num_rows`, grouped by problem.

    The choice does not depend on rewards, so that the table is not better or worse than the batch.
    """
    problems = {problem: place for place, problem in enumerate(dict.fromkeys(record.problem for record in records))}
    in_turns = sorted(records, key=lambda record: (record.sample, problems[record.problem]))[:num_rows]
    return sorted(in_turns, key=lambda record: (problems[record.problem], record.sample))


def bounded(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return the text, or its beginning and its end with the number of characters left out between them."""
    if len(text) <= most:
        return text
    note = f" [... {len(text) - most} characters left out ...] "
    return text[: most // 2] + note + text[len(text) - most // 2 :]
