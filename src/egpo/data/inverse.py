"""Parquet back to OpenAI messages: supervised training on the identical split and the identical prompt."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from egpo.data.output import StagedFiles
from egpo.data.parquet import SPLITS, read_rows
from egpo.data.rows import Row
from egpo.errors import InputError


@dataclass(frozen=True)
class Inversion:
    """What was written: rows per file."""

    out: str
    rows: dict[str, int]


def invert(source: Path, out: Path, *, force: bool = False) -> Inversion:
    """One parquet file, or a directory's train and test, to JSON lines of the same names."""
    paths = _parquet_files(source)
    rows = {}
    with StagedFiles(out, force=force) as files:
        for path in paths:
            name = f"{path.stem}.jsonl"
            rows[name] = 0
            with files.stage(name).open("w", encoding="utf-8") as file:
                for line in _lines(path):
                    file.write(f"{line}\n")
                    rows[name] += 1
        files.commit()
    return Inversion(str(out), rows)


def _parquet_files(source: Path) -> list[Path]:
    paths = [source / f"{split}.parquet" for split in SPLITS] if source.is_dir() else [source]
    found = [path for path in paths if path.exists()]
    if not found:
        raise InputError("no train.parquet or test.parquet there", where=str(source), fix="give a prepared directory")
    return found


def _lines(path: Path) -> Iterator[str]:
    for index, row in enumerate(read_rows(path)):
        yield json.dumps({"messages": to_messages(row, f"{path}, row {index}")}, ensure_ascii=False)


def to_messages(row: Row, where: str) -> list[dict[str, str]]:
    """The prompt as it stands, and the answer as the assistant's turn. The calls stay text, so that no template
    can spell them otherwise than the prompt that reinforcement sees. A row without an answer is an error."""
    answer = str(row.extra.get("answer") or "") or (row.ground_truth if row.ability == "function_calling" else "")
    if not answer:
        raise InputError(
            "the row has no answer to learn from (`extra_info.answer`)",
            where=where,
            fix="prepare it with a generator, or from a source that has solutions",
        )
    return [*row.prompt, {"role": "assistant", "content": answer}]
