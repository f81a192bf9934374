"""Starts and resumes runs, in the same order for reinforcement learning, supervised fine-tuning and verl.

New run: check that the folder is empty or absent, load and check everything, create the folder. A recipe that fails its
checks leaves no folder. Resumed run: lock the folder, read and verify the checkpoint, load and check everything,
restore the state, and only then remove what the run wrote about later steps. In both cases `provenance.json` records
the launch, and the trackers are opened last.

To add a kind of run, subclass `RunOpening` and override the operations in which it differs.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from egpo.benchmark_cases import Cases
from egpo.runs.folder import RunFolder
from egpo.runs.ledger import NOTHING_YET, require_rewindable, rewind
from egpo.runs.provenance import Launch, Provenance, record_resumption, write_provenance
from egpo.runs.trackers import Trackers, open_trackers

Loaded = TypeVar("Loaded")
"""The type of what a kind of run loads before it writes anything: the model, the task, the data."""


class WatchSettings(Protocol):
    """The part of a config that names the trackers."""

    @property
    def trackers(self) -> Iterable[str]: ...


class RunConfig(Protocol):
    """The part of a config that every kind of run has."""

    @property
    def name(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def watch(self) -> WatchSettings: ...
    def model_dump(self, *, mode: str, exclude_defaults: bool = False) -> dict[str, Any]: ...


class StoredCheckpoints(Protocol):
    """The operations on the checkpoints of a run that opening the run needs."""

    def choose(self, step: int | None) -> int: ...
    def forget_after(self, step: int) -> None: ...


@dataclass(frozen=True)
class LaunchProvenance:
    """The record of this process for `provenance.json`: the launch, the digests and files of its data, and the cases of
    public benchmarks in it."""

    launch: Launch
    data: Mapping[str, str]
    files: Mapping[str, Path] = field(default_factory=dict)
    benchmark_cases: Cases = field(default_factory=dict)


class RunOpening(ABC, Generic[Loaded]):
    """The operations of opening a run that differ between the kinds of run, called by `_created` and `_resumed`."""

    allows_gaps = False
    """Whether a run may be resumed if the metrics of an earlier step are missing."""

    def __init__(self, folder: RunFolder, checkpoints: StoredCheckpoints, config: RunConfig, config_yaml: str) -> None:
        self.folder, self.checkpoints = folder, checkpoints
        self.run_config, self.config_yaml = config, config_yaml

    def clear_leftovers(self) -> None:
        """Resume only: end child processes that a killed run left running, and record the steps that they logged."""

    def read_checkpoint(self, step: int) -> None:
        """Resume only: read and verify the checkpoint of `step`, before `load`."""

    @abstractmethod
    def load(self) -> Loaded:
        """Load and check the model, the task and the data, without writing anything."""

    def restore(self, loaded: Loaded, step: int) -> None:
        """Resume only: copy the state of the checkpoint of `step` into the loaded objects."""

    @abstractmethod
    def describe(self, loaded: Loaded, step: int) -> LaunchProvenance:
        """Return the provenance of this process, which continues after `step`. May write data into the run folder."""

    def rewind(self, step: int) -> None:
        """Resume only: remove what the run wrote about the steps after `step`."""
        # Checkpoints first: a checkpoint must never be newer than the metrics.
        self.checkpoints.forget_after(step)
        rewind(self.folder, step or NOTHING_YET, gaps=self.allows_gaps)

    def require_disk_room(self, loaded: Loaded) -> None:
        """Raise InputError if the disk has too little free space for a checkpoint."""


@dataclass(frozen=True, eq=False)
class OpenedRun(Generic[Loaded]):
    """An opened run, ready for its next step. `start` is the number of steps already done: 0 for a new run."""

    loaded: Loaded
    start: int
    trackers: Trackers


@contextmanager
def opened(
    opening: RunOpening[Loaded], *, resume: bool = False, resume_from: int | None = None
) -> Iterator[OpenedRun[Loaded]]:
    """Create or resume a run, and hold its lock until the block ends.

    `resume` continues from the newest checkpoint, or from the beginning if there is none. `resume_from` continues from
    the checkpoint of that step, and removes what the run wrote about later steps.
    """
    is_resumed = resume or resume_from is not None
    with _resumed(opening, resume_from) if is_resumed else _created(opening) as (loaded, start):
        config = opening.run_config
        trackers = open_trackers(config.watch.trackers, config.name, config.model_dump(mode="json"), opening.folder)
        with closing(trackers):
            yield OpenedRun(loaded, start, trackers)


@contextmanager
def _created(opening: RunOpening[Loaded]) -> Iterator[tuple[Loaded, int]]:
    opening.folder.require_free()
    loaded = opening.load()
    opening.require_disk_room(loaded)
    with RunFolder.create(opening.folder.path, opening.config_yaml):
        _record_launch(opening, loaded, 0)
        yield loaded, 0


@contextmanager
def _resumed(opening: RunOpening[Loaded], step: int | None) -> Iterator[tuple[Loaded, int]]:
    changed = opening.run_config.model_dump(mode="json", exclude_defaults=True)
    with RunFolder.resume(opening.folder.path, opening.config_yaml, changed):
        opening.clear_leftovers()
        start = opening.checkpoints.choose(step)
        if start:
            opening.read_checkpoint(start)
        require_rewindable(opening.folder, start or NOTHING_YET, gaps=opening.allows_gaps)
        loaded = opening.load()
        if start:
            opening.restore(loaded, start)
        _record_launch(opening, loaded, start)
        opening.rewind(start)
        opening.require_disk_room(loaded)
        yield loaded, start


def _record_launch(opening: RunOpening[Loaded], loaded: Loaded, step: int) -> None:
    """Write `provenance.json`, or add a resumption to it. Raise InputError if the data has changed."""
    record, path = opening.describe(loaded, step), opening.folder.provenance
    if path.exists():
        record_resumption(path, record.launch, record.data, record.files)
    else:
        provenance = Provenance(
            opening.run_config.seed, record.data, record.launch, benchmark_cases=record.benchmark_cases
        )
        write_provenance(path, provenance)
