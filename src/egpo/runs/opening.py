"""Open a run: one order of operations for reinforcement learning, supervised fine-tuning and verl.

A new run: the folder must be free, then everything is loaded and checked, then the folder is created. A recipe that
fails its checks leaves no folder. A resumed run: the folder is locked, its checkpoint is read and verified, everything
is loaded and checked, the state is restored; only then is removed what the run wrote about later steps. In both cases
`provenance.json` records the launch, and the trackers are opened last.

Another kind of run subclasses `RunOpening` and overrides the operations in which it differs.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from egpo.runs.folder import RunFolder
from egpo.runs.ledger import NOTHING_YET, require_rewindable, rewind
from egpo.runs.provenance import Launch, Provenance, record_resumption, write_provenance
from egpo.runs.trackers import Trackers, open_trackers

Loaded = TypeVar("Loaded")
"""What a kind of run loads before anything is written: the model, the task, the data."""


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
    """The checkpoints of a run, as far as opening it needs them."""

    def choose(self, step: int | None) -> int: ...
    def forget_after(self, step: int) -> None: ...


@dataclass(frozen=True)
class LaunchProvenance:
    """This process and its data, for `provenance.json`. `files` are the files that `data` has digests of."""

    launch: Launch
    data: Mapping[str, str]
    files: Mapping[str, Path] = field(default_factory=dict)


class RunOpening(ABC, Generic[Loaded]):
    """What differs between the kinds of run. `_created` and `_resumed` show the order of the calls."""

    allows_gaps = False
    """Whether the metrics of an earlier step may be missing."""

    def __init__(self, folder: RunFolder, checkpoints: StoredCheckpoints, config: RunConfig, config_yaml: str) -> None:
        self.folder, self.checkpoints = folder, checkpoints
        self.run_config, self.config_yaml = config, config_yaml

    def clear_leftovers(self) -> None:
        """Resume only: end what a killed process left running, and take over what it wrote."""

    def read_checkpoint(self, step: int) -> None:
        """Resume only: read and verify the checkpoint of `step`, before anything is loaded."""

    @abstractmethod
    def load(self) -> Loaded:
        """Load everything and check it. Write nothing."""

    def restore(self, loaded: Loaded, step: int) -> None:
        """Resume only: put the state of the checkpoint into what was loaded."""

    @abstractmethod
    def describe(self, loaded: Loaded, step: int) -> LaunchProvenance:
        """Describe this process, which continues after `step`. It may write the data into the folder."""

    def rewind(self, step: int) -> None:
        """Resume only: remove what the run wrote about the steps after `step`."""
        # In this order: a checkpoint must never be newer than the metrics.
        self.checkpoints.forget_after(step)
        rewind(self.folder, step or NOTHING_YET, gaps=self.allows_gaps)

    def require_disk_room(self, loaded: Loaded) -> None:
        """Raise InputError where the disk has no room for a checkpoint."""


@dataclass(frozen=True, eq=False)
class OpenedRun(Generic[Loaded]):
    """A run that can take its next step. `start` is the number of steps done: 0 for a new run."""

    loaded: Loaded
    start: int
    trackers: Trackers


@contextmanager
def opened(
    opening: RunOpening[Loaded], *, resume: bool = False, resume_from: int | None = None
) -> Iterator[OpenedRun[Loaded]]:
    """Create or resume a run, and hold its lock until the block ends.

    `resume` continues from the newest checkpoint, or from the beginning where there is none. `resume_from` continues
    from the checkpoint of that step, and removes what came later.
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
    """Begin `provenance.json`, or add a resumption to it. InputError where the data has changed."""
    record, path = opening.describe(loaded, step), opening.folder.provenance
    if path.exists():
        record_resumption(path, record.launch, record.data, record.files)
    else:
        write_provenance(path, Provenance(opening.run_config.seed, record.data, record.launch))
