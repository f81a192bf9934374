"""Converts conversations to verl parquet files, and parquet files back to OpenAI messages (`egpo convert`).

Records are converted one at a time and written to a temporary file, from which the splits are then written; so a file
may be larger than memory. Messages are for supervised fine-tuning with the same split and the same prompts.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from egpo.data.conversations import ToolStyle
from egpo.data.hardgen import convert_hardgen
from egpo.data.manifest import MANIFEST, FileEntry, Manifest, file_digest
from egpo.data.messages import convert_messages
from egpo.data.output import StagedFiles
from egpo.data.readers import Record, read_records
from egpo.data.rows import SPLITS, Dropped, Row, read_rows, write_parquet
from egpo.data.splits import (
    Indices,
    Split,
    Spool,
    choose_rows,
    require_max_samples,
    require_seed,
    require_test_size,
    split_rows,
)
from egpo.data.tokens import TokenCounter, TokenStatistics
from egpo.data.xlam import convert_xlam
from egpo.errors import InputError

Converter = Callable[[Record, int, ToolStyle], Row | Dropped]

CONVERTERS: dict[str, Converter] = {"hardgen": convert_hardgen, "messages": convert_messages, "xlam": convert_xlam}
CONVERSION_VERSION = 2
"""Version of the conversion. It is increased when the same source and options give different rows."""


@dataclass(frozen=True)
class SplitRule:
    """Which rows are taken, and how they are split into training and test data. Invalid values raise InputError.

    With `keep_duplicates`, rows with equal prompts are kept, and a prompt may be in both splits. Use it to reproduce
    experiments that kept them.
    """

    test_size: float = 0.05
    seed: int = 42
    max_samples: int | None = None
    shuffle: bool = True
    keep_duplicates: bool = False

    def __post_init__(self) -> None:
        require_seed(self.seed)
        require_test_size(self.test_size)
        if self.max_samples is not None:
            require_max_samples(self.max_samples)


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion.

    `read`: records read. `rows`: rows written, by split. `dropped`: records left out, by reason. `without_call`: rows
    whose right answer has no tool call. `tokens`: token statistics, by split.
    """

    out: str
    read: int
    rows: dict[str, int]
    dropped: dict[str, int]
    without_call: int
    tools_text: str
    tokens: dict[str, TokenStatistics] = field(default_factory=dict)


@dataclass
class _Tally:
    read: int = 0
    without_call: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


def convert(
    kind: str,
    source: Path,
    out: Path,
    rule: SplitRule,
    *,
    style: ToolStyle | None = None,
    tokenizer: Any = None,
    force: bool = False,
    watch: Callable[[Iterable[Record]], Iterable[Record]] = iter,
) -> Conversion:
    """Convert the records of `source`, and write both splits and a manifest to the folder `out`.

    The source is read once. Memory use is 24 bytes per row.
    """
    style = style or ToolStyle()
    with StagedFiles(out, force=force) as files, Spool(out) as spool:
        tally = _spool(watch(read_records(source)), CONVERTERS[kind], style, spool)
        split = split_rows(_chosen(spool, rule, tally, source), rule.test_size, rule.seed)
        entries, tokens = _write(files, spool, split, tokenizer)
        _manifest(kind, source, rule, style, entries, tally).write(files.stage(MANIFEST))
        files.commit()
    rows = {name.removesuffix(".parquet"): entry.rows for name, entry in entries.items()}
    return Conversion(str(out), tally.read, rows, dict(tally.dropped), tally.without_call, style.tools_text, tokens)


def _spool(records: Iterable[Record], converter: Converter, style: ToolStyle, spool: Spool) -> _Tally:
    tally = _Tally()
    for index, record in enumerate(records):
        tally.read += 1
        row = converter(record, index, style)
        if isinstance(row, Dropped):
            tally.dropped[row.reason] += 1
            continue
        try:
            spool.append(row)
        except UnicodeEncodeError:
            tally.dropped["lone_surrogate"] += 1
            continue
        tally.without_call += not row.ground_truth
    return tally


def _chosen(spool: Spool, rule: SplitRule, tally: _Tally, source: Path) -> Indices:
    if not len(spool):
        reasons = ", ".join(f"{reason}: {count}" for reason, count in tally.dropped.items())
        raise InputError(
            f"all {tally.read} records of the file were dropped ({reasons})",
            where=str(source),
            fix="see docs/data.md for the meaning of each reason",
        )
    kept = choose_rows(len(spool), None, shuffle=False, seed=0) if rule.keep_duplicates else spool.unique_rows()
    if len(kept) < len(spool):
        tally.dropped["duplicate"] = len(spool) - len(kept)
    return kept[choose_rows(len(kept), rule.max_samples, shuffle=rule.shuffle, seed=rule.seed)]


def _write(
    files: StagedFiles, spool: Spool, split: Split, tokenizer: Any
) -> tuple[dict[str, FileEntry], dict[str, TokenStatistics]]:
    entries, tokens = {}, {}
    for name, indices in (("train", split.train), ("test", split.test)):
        path = files.stage(f"{name}.parquet")
        counter = TokenCounter(tokenizer)
        picked = spool.pick(indices)
        count = write_parquet(path, counter.watch(picked) if tokenizer else picked, name)
        entries[f"{name}.parquet"] = FileEntry.of(path, count)
        if tokenizer:
            tokens[name] = counter.statistics()
    return entries, tokens


def _manifest(
    kind: str, source: Path, rule: SplitRule, style: ToolStyle, entries: dict[str, FileEntry], tally: _Tally
) -> Manifest:
    settings = {
        "test_size": rule.test_size,
        "max_samples": rule.max_samples,
        "shuffle": rule.shuffle,
        "keep_duplicates": rule.keep_duplicates,
        "instruction": style.instruction,
        "tools_text": style.tools_text,
        "wrap_tools": style.wrap_tools,
    }
    return Manifest(
        kind=kind,
        source=source.name,
        source_sha256=file_digest(source),
        version=CONVERSION_VERSION,
        seed=rule.seed,
        settings=settings,
        files=entries,
        dropped=dict(sorted(tally.dropped.items())),
    )


AnswerOf = Callable[[Row], str | Dropped]
"""A function that returns the assistant's message for a row, or the reason why there is none."""


@dataclass(frozen=True)
class MessagesExport:
    """The result of `export_messages`: rows written by file, and dropped rows by reason."""

    out: str
    rows: dict[str, int]
    dropped: dict[str, int] = field(default_factory=dict)


def export_messages(
    source: Path, out: Path, *, force: bool = False, answer_of: AnswerOf | None = None
) -> MessagesExport:
    """Write a parquet file, or the train and test files of a folder, as JSON lines of `messages` with the same names.

    `answer_of` returns the assistant's message of a row; the default is `stored_answer`. Raise InputError if a file has
    no row with an answer.
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
    return MessagesExport(str(out), rows, dict(sorted(dropped.items())))


def _parquet_files(source: Path) -> list[Path]:
    paths = [source / f"{split}.parquet" for split in SPLITS] if source.is_dir() else [source]
    found = [path for path in paths if path.exists()]
    if not found:
        what = "there is no parquet file, or no folder with train.parquet or test.parquet, at this path"
        fix = "give a parquet file, or a folder that `egpo prepare` or `egpo convert` wrote"
        raise InputError(what, where=str(source), fix=fix)
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
        f"none of the file's rows has an answer to learn from ({reasons})",
        where=str(path),
        fix="prepare the data from a generator or from a source with solutions; docs/data.md explains the reasons",
    )


def stored_answer(row: Row) -> str | Dropped:
    """Return the answer stored in the row: `extra_info.answer`, or the ground truth of a tool-calling conversation.

    Return `Dropped` if there is none.
    """
    answer = str(row.extra.get("answer") or "") or (row.ground_truth if row.ability == "function_calling" else "")
    return answer or Dropped("no_answer")
