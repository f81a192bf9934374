"""`egpo prepare`: a task's problems as verl parquet, with a manifest."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from egpo.data.manifest import MANIFEST, FileEntry, Manifest
from egpo.data.output import StagedFiles
from egpo.data.readers import Record
from egpo.data.rows import SPLITS, Dropped, Row, write_parquet
from egpo.data.sources import Source, open_source
from egpo.errors import InputError
from egpo.tasks.protocol import Problem
from egpo.tasks.sourced import RecordReader, Sizes, SourcedTask

Watch = Callable[[Iterable[Problem]], Iterable[Problem]]


@dataclass(frozen=True)
class Preparation:
    """What was written: rows and digest per file, and how many records were dropped, by reason."""

    out: str
    source: str
    files: dict[str, FileEntry]
    dropped: dict[str, int]


@dataclass
class _Flow:
    """One preparation under way: the keys seen so far, and what was dropped."""

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
    """Writes train.parquet, test.parquet and manifest.json into `out`, all or nothing.

    Without a source the rows are drawn. An undivided source gives its first `train` rows to training and the next
    `test` to testing; one that has both splits keeps them. No problem is in both.
    """
    for name, count in (("--train", train), ("--test", test)):
        if count is not None and count < 1:
            raise InputError(f"{count} rows", where=name, fix="give 1 or more")
    flow = _Flow(task, seed, train, test, watch)
    with StagedFiles(out, force=force) as files:
        opened = open_source(source, task.hub_config) if source else None
        entries: dict[str, FileEntry] = {}
        for split, problems in _splits(flow, opened):
            path = files.stage(f"{split}.parquet")
            rows = (_row(task, problem, generated=opened is None) for problem in flow.watch(problems))
            count = _written(path, rows, split, source)
            entries[f"{split}.parquet"] = FileEntry.of(path, count)
        _manifest(flow, opened, entries).write(files.stage(MANIFEST))
        files.commit()
    name = opened.name if opened else "generator"
    return Preparation(str(out), name, {f"{s}.parquet": entries[f"{s}.parquet"] for s in SPLITS}, dict(flow.dropped))


def _written(path: Path, rows: Iterator[Row], split: str, source: str | None) -> int:
    try:
        return write_parquet(path, rows, split)
    except UnicodeEncodeError as error:
        raise InputError(
            "text that is not Unicode (a lone surrogate)", where=f"{source}, split `{split}`", fix="mend the source"
        ) from error


def _splits(flow: _Flow, source: Source | None) -> Iterator[tuple[str, Iterator[Problem]]]:
    """The splits in the order in which they must be read: the later one leaves out what the earlier one has."""
    if source is None:
        sizes = flow.task.generated_sizes
        yield "test", flow.task.generate("test", flow.test or sizes.test, flow.taken, flow.seed)
        yield "train", flow.task.generate("train", flow.train or sizes.train, flow.taken, flow.seed)
    elif "all" in source.readers:
        sizes = _undivided_sizes(flow, source)
        records = _read(flow, source.readers["all"]())
        yield "train", _exactly(_marked(flow, records), sizes.train, source.name)
        yield "test", _exactly(_new_to(flow, records), sizes.test, source.name)
    else:
        yield "test", _upto(_marked(flow, _read(flow, source.readers["test"]())), flow.test, source.name)
        yield "train", _upto(_new_to(flow, _read(flow, source.readers["train"]())), flow.train, source.name)


def _undivided_sizes(flow: _Flow, source: Source) -> Sizes:
    default = flow.task.source_sizes
    train = flow.train or (default.train if default else None)
    test = flow.test or (default.test if default else None)
    if train is None or test is None:
        raise InputError(
            "the source is not divided into splits",
            where=source.name,
            fix="say --train N and --test N, or give a directory with a train and a test file",
        )
    return Sizes(train, test)


def _read(flow: _Flow, records: Iterable[Record]) -> Iterator[Problem]:
    read: RecordReader = flow.task.reader()
    for index, record in enumerate(records):
        problem = read(record, index)
        if isinstance(problem, Dropped):
            flow.dropped[problem.reason] += 1
        else:
            yield problem


def _marked(flow: _Flow, problems: Iterator[Problem]) -> Iterator[Problem]:
    """All of them, remembered. Repetitions inside a split stay: a published split is kept as published."""
    for problem in problems:
        flow.taken.add(problem.key)
        yield problem


def _new_to(flow: _Flow, problems: Iterator[Problem]) -> Iterator[Problem]:
    for problem in problems:
        if problem.key in flow.taken:
            flow.dropped["in_other_split"] += 1
        else:
            yield problem


def _exactly(problems: Iterator[Problem], count: int, where: str) -> Iterator[Problem]:
    made = 0
    for problem in islice(problems, count):
        made += 1
        yield problem
    if made < count:
        raise InputError(
            f"has {made} rows left where {count} are wanted", where=where, fix="say fewer with --train N and --test N"
        )


def _upto(problems: Iterator[Problem], count: int | None, where: str) -> Iterator[Problem]:
    return problems if count is None else _exactly(problems, count, where)


def _row(task: SourcedTask, problem: Problem, *, generated: bool) -> Row:
    source = task.generated_data_source if generated else task.data_source
    return Row(source, problem.messages, problem.ability, problem.ground_truth, problem.extra)


def _manifest(flow: _Flow, source: Source | None, entries: dict[str, FileEntry]) -> Manifest:
    return Manifest(
        kind=f"prepare {type(flow.task).__name__}",
        source=source.name if source else "generator",
        source_sha256=source.digest if source else "",
        version=flow.task.version,
        seed=flow.seed,
        settings={"train": flow.train, "test": flow.test},
        files=entries,
        dropped=dict(sorted(flow.dropped.items())),
    )
