"""Conversations of any size to verl parquet: records stream to a spool, the split picks from it."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from egpo.data.conversations import ToolStyle
from egpo.data.hardgen import convert_hardgen
from egpo.data.manifest import MANIFEST, FileEntry, Manifest, file_digest
from egpo.data.messages import convert_messages
from egpo.data.output import StagedFiles
from egpo.data.parquet import write_parquet
from egpo.data.readers import Record, read_records
from egpo.data.rows import Dropped, Row
from egpo.data.splits import (
    Indices,
    Split,
    choose_rows,
    require_max_samples,
    require_seed,
    require_test_size,
    split_rows,
)
from egpo.data.spool import Spool
from egpo.data.tokens import TokenCounter, TokenStatistics
from egpo.data.xlam import convert_xlam
from egpo.errors import InputError

Converter = Callable[[Record, int, ToolStyle], Row | Dropped]

CONVERTERS: dict[str, Converter] = {"hardgen": convert_hardgen, "messages": convert_messages, "xlam": convert_xlam}
CONVERSION_VERSION = 2


@dataclass(frozen=True)
class SplitRule:
    """Which rows are taken, and how they are split: what cannot be is refused before any file is read.
    `keep_duplicates` is for repeating runs that kept them: then one prompt may be in both splits."""

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
    """What a conversion did: the table that is printed."""

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
    """Reads `source` once, row by row; memory holds 24 bytes a row, never the rows."""
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
            f"none of its {tally.read} records became a row ({reasons})",
            where=str(source),
            fix="see docs/data.md for what each reason means",
        )
    firsts = choose_rows(len(spool), None, shuffle=False, seed=0) if rule.keep_duplicates else spool.firsts()
    if len(firsts) < len(spool):
        tally.dropped["duplicate"] = len(spool) - len(firsts)
    return firsts[choose_rows(len(firsts), rule.max_samples, shuffle=rule.shuffle, seed=rule.seed)]


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
