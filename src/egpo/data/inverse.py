"""Parquet back to OpenAI messages: supervised training on the identical split and the identical prompt."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from egpo.data.output import StagedFiles
from egpo.data.parquet import SPLITS, read_rows
from egpo.data.rows import Dropped, Row
from egpo.errors import InputError

AnswerOf = Callable[[Row], str | Dropped]
"""What the assistant should have said to a row's prompt, or why that is not known."""


@dataclass(frozen=True)
class Inversion:
    """What was written: rows per file, and the rows left out, by reason."""

    out: str
    rows: dict[str, int]
    dropped: dict[str, int] = field(default_factory=dict)


def invert(source: Path, out: Path, *, force: bool = False, answer_of: AnswerOf | None = None) -> Inversion:
    """One parquet file, or a directory's train and test, to JSON lines of the same names.

    `answer_of` gives the assistant's turn; without it, `stored_answer` does. A file of which no row is left is an
    InputError.
    """
    paths = _parquet_files(source)
    rows: dict[str, int] = {}
    dropped: Counter[str] = Counter()
    with StagedFiles(out, force=force) as files:
        for path in paths:
            name = f"{path.stem}.jsonl"
            rows[name] = 0
            with files.stage(name).open("w", encoding="utf-8") as file:
                for line in _lines(path, answer_of or stored_answer, dropped):
                    file.write(f"{line}\n")
                    rows[name] += 1
            if not rows[name]:
                raise _nothing_left(path, dropped)
        files.commit()
    return Inversion(str(out), rows, dict(sorted(dropped.items())))


def _parquet_files(source: Path) -> list[Path]:
    paths = [source / f"{split}.parquet" for split in SPLITS] if source.is_dir() else [source]
    found = [path for path in paths if path.exists()]
    if not found:
        raise InputError("no train.parquet or test.parquet there", where=str(source), fix="give a prepared directory")
    return found


def _lines(path: Path, answer_of: AnswerOf, dropped: Counter[str]) -> Iterator[str]:
    for row in read_rows(path):
        answer = answer_of(row)
        if isinstance(answer, Dropped):
            dropped[answer.reason] += 1
        else:
            messages = [*row.prompt, {"role": "assistant", "content": answer}]
            yield json.dumps({"messages": messages}, ensure_ascii=False)


def _nothing_left(path: Path, dropped: Counter[str]) -> InputError:
    reasons = ", ".join(f"{reason}: {count}" for reason, count in dropped.items())
    return InputError(
        f"none of its rows has an answer to learn from ({reasons})",
        where=str(path),
        fix="prepare it with a generator, or from a source that has solutions; docs/data.md explains the reasons",
    )


def stored_answer(row: Row) -> str | Dropped:
    """The answer that the row itself holds: `extra_info.answer`, or the ground truth of a tool conversation."""
    answer = str(row.extra.get("answer") or "") or (row.ground_truth if row.ability == "function_calling" else "")
    return answer or Dropped("no_answer")
