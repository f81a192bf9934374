"""The base class of the built-in tasks, whose problems come from a folder of prepared data or from a generator."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from egpo.data import Dropped, Message, ParquetRows, Record, Row
from egpo.data.manifest import verify
from egpo.data.rows import SPLITS
from egpo.data.sources import Source, open_source
from egpo.errors import InputError, nearest, shortened
from egpo.files import path_fault
from egpo.rewards.verdict import Verdict
from egpo.tasks.protocol import Problem

RecordReader = Callable[[Record, int], Problem | Dropped]

GENERATOR = "generator"
_MAX_REPEATS = 2_000
"""Number of consecutive draws of known problems after which generating fails: there are hardly any new ones."""


@dataclass(frozen=True)
class Sizes:
    """The number of rows in each split."""

    train: int
    test: int


def require_choice(task: str, setting: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{setting}={value!r} is not allowed", where=f"task {task}", fix=nearest(str(value), choices))


LARGEST_WHOLE = 2**31 - 1


def require_whole(task: str, **settings: object) -> None:
    """Raise InputError unless each setting is a whole number of at most 2^31 - 1. A seed may be larger."""
    for setting, value in settings.items():
        if isinstance(value, int) and value > LARGEST_WHOLE and setting != "seed":
            raise InputError(f"{setting} is too large", where=f"task {task}", fix=f"give {LARGEST_WHOLE:,} or less")
        if not isinstance(value, int) or isinstance(value, bool):
            what = f"{setting}={value!r} is not a whole number"
            raise InputError(what, where=f"task {task}", fix="give a whole number")


def require_at_least(task: str, least: int, **settings: int) -> None:
    require_whole(task, **settings)
    for setting, value in settings.items():
        if value < least:
            raise InputError(f"{setting}={value} is too small", where=f"task {task}", fix=f"give {least} or more")


class SourcedTask(ABC):
    """A task whose problems are read from `source`, a folder that `egpo prepare` or `egpo convert` wrote.

    `train` and `test` limit the number of rows of each split. Without a source, they are the numbers of problems that
    are generated. Generated test problems depend only on `test` and the seed, and none of them is a training problem.
    """

    data_source: ClassVar[str]
    """Value of the column `data_source` in rows that come from a source."""
    generated_data_source: ClassVar[str]
    """Value of the column `data_source` in generated rows."""
    ability: ClassVar[str]
    """Value of the column `ability` in rows of this task."""
    generated_sizes: ClassVar[Sizes]
    """Default number of generated problems in each split."""
    source_sizes: ClassVar[Sizes | None] = None
    """Default number of rows for training and testing, taken in this order from a source that is not split."""
    hub_config: ClassVar[str | None] = None
    """Configuration name of the dataset on the hub, if the source does not give one."""
    default_source: ClassVar[str] = GENERATOR
    """Identity of the data without a source: the generator, or a download of this version."""
    data_of: ClassVar[str | None] = None
    """Name of the task whose prepared data this task reads, if it is another one."""
    version: ClassVar[int] = 1
    """Version of the generator and the conversion. It is increased when the same seed gives different rows."""

    def __init__(
        self, *, source: str | Path | None = None, train: int | None = None, test: int | None = None, seed: int = 0
    ) -> None:
        if not isinstance(source, str | Path | None):
            what = f"source={source!r} is not a path"
            raise InputError(what, where=f"task {type(self).__name__}", fix="give the path of a folder")
        if source is not None and (fault := path_fault(str(source))):
            what = f"source={shortened(str(source))} is not a valid path"
            raise InputError(what, where=f"task {type(self).__name__}", fix=f"it must be {fault}")
        self.source = None if source is None else Path(source)
        self.seed, self._limits = seed, {"train": train, "test": test}
        given = {split: limit for split, limit in self._limits.items() if limit is not None}
        require_whole(type(self).__name__, seed=seed, **given)
        for split, limit in given.items():
            if limit < 1:
                what = f"{split}={limit} is too small"
                raise InputError(what, where=f"task {type(self).__name__}", fix="give 1 or more")
        self._held: dict[str, Sequence[Problem]] = {}

    @abstractmethod
    def draw(self, rng: random.Random) -> Problem:
        """Generate one random problem. It may be equal to an earlier one."""

    @abstractmethod
    def read(self, record: Record, index: int) -> Problem | Dropped:
        """Convert one record of a source to a problem.

        Raise InputError with the record's file and line if a required key is missing.
        """

    @abstractmethod
    def key(self, row: Row) -> str:
        """Return the key that identifies the problem in a stored row."""

    @abstractmethod
    def judge(self, problem: Problem, text: str) -> Verdict: ...

    @abstractmethod
    def gold(self, problem: Problem) -> str: ...

    def open(self, source: str | None, seed: int) -> Source | None:
        """Open the source of `egpo prepare`; None: the problems are generated."""
        return open_source(source, self.hub_config) if source else None

    def reader(self) -> RecordReader:
        """Return a function that converts the records of one source, called in their order."""
        return self.read

    def prompt(self, problem: Problem) -> list[Message]:
        return [dict(message) for message in problem.messages]

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in SPLITS:
            raise InputError(f"unknown split `{split}`", where=type(self).__name__, fix=nearest(split, SPLITS))
        if split not in self._held:
            self._held |= self._drawn() if self.source is None else {split: self._stored(self.source, split)}
        return self._held[split]

    def generate(self, split: str, count: int, taken: set[str], seed: int) -> Iterator[Problem]:
        """Yield `count` generated problems whose keys are not in `taken`, and add their keys to `taken`.

        Raise InputError if the generator gives no more new problems.
        """
        rng, repeats = random.Random(f"{seed}:{split}"), 0
        made = 0
        while made < count:
            problem = self.draw(rng)
            if problem.key in taken:
                repeats += 1
                if repeats > _MAX_REPEATS:
                    raise InputError(
                        f"the generator has only about {len(taken)} different problems",
                        where=f"{type(self).__name__}, split `{split}`",
                        fix="request fewer problems, or widen the task's settings",
                    )
                continue
            taken.add(problem.key)
            made, repeats = made + 1, 0
            yield problem

    def problem_of(self, row: Row) -> Problem:
        return Problem(self.key(row), row.prompt, row.ground_truth, row.ability, row.extra)

    def _drawn(self) -> dict[str, list[Problem]]:
        taken: set[str] = set()
        counts = {split: self._limits[split] or getattr(self.generated_sizes, split) for split in ("test", "train")}
        return {split: list(self.generate(split, count, taken, self.seed)) for split, count in counts.items()}

    def _stored(self, directory: Path, split: str) -> Sequence[Problem]:
        return self._stored_file(directory, split, self._limits[split])

    def _stored_file(self, directory: Path, name: str, limit: int | None) -> Sequence[Problem]:
        path = directory / f"{name}.parquet"
        if not path.is_file():
            raise InputError(
                "no such file",
                where=str(path),
                fix="set the task's `source` to a folder that `egpo prepare` or `egpo convert` wrote",
            )
        verify(directory, path.name)
        return ParquetRows(path, self.problem_of, limit)
