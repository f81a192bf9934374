"""Writes the problems of a task as verl parquet files, with a manifest of checksums (`egpo prepare`)."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from egpo.data.manifest import MANIFEST, FileEntry, Manifest
from egpo.data.output import StagedFiles
from egpo.data.readers import Record
from egpo.data.rows import SPLITS, Dropped, Row, write_parquet
from egpo.data.sources import Source
from egpo.errors import InputError
from egpo.tasks.protocol import Problem
from egpo.tasks.sourced import RecordReader, Sizes, SourcedTask

Watch = Callable[[Iterable[Problem]], Iterable[Problem]]


@dataclass(frozen=True)
class Preparation:
    """The result of `egpo prepare`: the number of rows and the digests of each file, and dropped records by reason."""

    out: str
    source: str
    files: dict[str, FileEntry]
    dropped: dict[str, int]


@dataclass
class _State:
    """The options and the state of one preparation.

    `taken` holds the keys of the problems of the first split, which the second leaves out. `dropped` counts the records
    that were left out, by reason.
    """

    task: SourcedTask
    seed: int
    train: int | None
    test: int | None
    watch: Watch
    taken: set[str] = field(default_factory=set)
    dropped: Counter[str] = field(default_factory=Counter)


def prepare(
    task: SourcedTask,
    out: Path,
    *,
    source: str | None = None,
    train: int | None = None,
    test: int | None = None,
    seed: int = 0,
    force: bool = False,
    watch: Watch = iter,
) -> Preparation:
    """Write train.parquet, test.parquet and manifest.json to the folder `out`. If this fails, no file is written.

    Without a source, the task generates the problems. If the source is not split, its first `train` rows are used for
    training and the next `test` rows for testing; otherwise its splits are kept. No problem is in both splits.
    """
    for name, count in (("--train", train), ("--test", test)):
        if count is not None and count < 1:
            raise InputError(f"{count} is not a valid number of rows", where=name, fix="give 1 or more")
    state = _State(task, seed, train, test, watch)
    with StagedFiles(out, force=force) as files:
        opened = task.open(source, seed)
        entries: dict[str, FileEntry] = {}
        for split, problems in _splits(state, opened):
            path = files.stage(f"{split}.parquet")
            rows = (_row(task, problem, generated=opened is None) for problem in state.watch(problems))
            count = _written(path, rows, split, source)
            entries[f"{split}.parquet"] = FileEntry.of(path, count)
        _manifest(state, opened, entries).write(files.stage(MANIFEST))
        files.commit()
    name = opened.name if opened else "generator"
    return Preparation(str(out), name, _in_order(entries), dict(state.dropped))


def _in_order(entries: dict[str, FileEntry]) -> dict[str, FileEntry]:
    """Return the entries with those of the splits first."""
    splits = [f"{split}.parquet" for split in SPLITS]
    return {name: entries[name] for name in (*splits, *sorted(entries.keys() - {*splits}))}


def _written(path: Path, rows: Iterator[Row], split: str, source: str | None) -> int:
    try:
        return write_parquet(path, rows, split)
    except UnicodeEncodeError as error:
        raise InputError(
            "the source contains text that is not valid Unicode (a lone surrogate)",
            where=f"{source}, split `{split}`",
            fix="correct the text in the source",
        ) from error


def _splits(state: _State, source: Source | None) -> Iterator[tuple[str, Iterator[Problem]]]:
    """Yield the name and the problems of each split. The second split leaves out the problems of the first.

    The splits must therefore be read in this order.
    """
    if source is None:
        sizes = state.task.generated_sizes
        yield "test", state.task.generate("test", state.test or sizes.test, state.taken, state.seed)
        yield "train", state.task.generate("train", state.train or sizes.train, state.taken, state.seed)
    elif "all" in source.readers:
        sizes = _undivided_sizes(state, source)
        records = _read(state, source.readers["all"]())
        yield "train", _exactly(_remember(state, records), sizes.train, source.name)
        yield "test", _exactly(_without_taken(state, records), sizes.test, source.name)
    else:
        yield "test", _limited(_remember(state, _read(state, source.readers["test"]())), state.test, source.name)
        yield (
            "train",
            _limited(_without_taken(state, _read(state, source.readers["train"]())), state.train, source.name),
        )
        for name in source.readers.keys() - {*SPLITS}:
            yield name, islice(_read(state, source.readers[name]()), state.test)


def _undivided_sizes(state: _State, source: Source) -> Sizes:
    default = state.task.source_sizes
    train = state.train or (default.train if default else None)
    test = state.test or (default.test if default else None)
    if train is None or test is None:
        raise InputError(
            "the source is not split into training and test data",
            where=source.name,
            fix="give --train N and --test N, or a directory with a train and a test file",
        )
    return Sizes(train, test)


def _read(state: _State, records: Iterable[Record]) -> Iterator[Problem]:
    read: RecordReader = state.task.reader()
    for index, record in enumerate(records):
        problem = read(record, index)
        if isinstance(problem, Dropped):
            state.dropped[problem.reason] += 1
        else:
            yield problem


def _remember(state: _State, problems: Iterator[Problem]) -> Iterator[Problem]:
    """Yield all problems, and add their keys to `state.taken`.

    Duplicates within a split are kept, so that a published split stays as it was published.
    """
    for problem in problems:
        state.taken.add(problem.key)
        yield problem


def _without_taken(state: _State, problems: Iterator[Problem]) -> Iterator[Problem]:
    for problem in problems:
        if problem.key in state.taken:
            state.dropped["in_other_split"] += 1
        else:
            yield problem


def _exactly(problems: Iterator[Problem], count: int, where: str) -> Iterator[Problem]:
    made = 0
    for problem in islice(problems, count):
        made += 1
        yield problem
    if made < count:
        raise InputError(
            f"{count} rows are requested, but only {made} are left",
            where=where,
            fix="request fewer rows with --train N and --test N",
        )


def _limited(problems: Iterator[Problem], count: int | None, where: str) -> Iterator[Problem]:
    return problems if count is None else _exactly(problems, count, where)


def _row(task: SourcedTask, problem: Problem, *, generated: bool) -> Row:
    source = task.generated_data_source if generated else task.data_source
    return Row(source, problem.messages, problem.ability, problem.ground_truth, problem.extra)


def _manifest(state: _State, source: Source | None, entries: dict[str, FileEntry]) -> Manifest:
    return Manifest(
        kind=f"prepare {type(state.task).__name__}",
        source=source.name if source else "generator",
        source_sha256=source.digest if source else "",
        version=state.task.version,
        seed=state.seed,
        settings={"train": state.train, "test": state.test},
        files=entries,
        dropped=dict(sorted(state.dropped.items())),
    )
