"""The paths of `runs/<name>/`, and the lock that lets one process at a time write there.

The operating system releases the lock when the process ends, even if it is killed.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpo.errors import EgpoError, InputError, warn_once
from egpo.files import UNFINISHED, lock_file, write_atomically
from egpo.runs.differences import refuse_other_training
from egpo.runs.removed import read_removed

LOCK_NAME = ".lock"
ACTOR, MODEL = "actor", "huggingface"
"""verl's names of two folders: `actor` in a checkpoint holds the trained policy, and `huggingface` in `actor` the model
folder that transformers loads."""
SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")
"""Pattern of the file names under which verl saves the part of the weights that one rank holds."""
PROBE = "probe.json"
_CHECKPOINT = re.compile(r"global_step_(\d+)")
_ROLLOUTS = re.compile(r"step_(\d+)\.jsonl")


def checkpoint_step(path: Path) -> int | None:
    """Return the step N of a checkpoint folder `global_step_N`; None for any other name."""
    match = _CHECKPOINT.fullmatch(path.name)
    return int(match[1]) if match else None


def rollouts_step(path: Path) -> int | None:
    """Return the step N of a file of rollouts `step_N.jsonl`; None for any other name."""
    match = _ROLLOUTS.fullmatch(path.name)
    return int(match[1]) if match else None


@contextmanager
def locked(
    folder: Path, name: str = LOCK_NAME, waiting: Callable[[str], AbstractContextManager[object]] | None = None
) -> Iterator[None]:
    """Hold the lock of a folder during the block. If another process holds it, raise InputError with its process id.

    With `waiting`, wait for that process instead, inside the context that `waiting(process id)` returns.
    Locks with different names are independent; every name starts with `LOCK_NAME`. On a file system without locks
    (some network file systems) the block runs without a lock, after a warning.
    """
    # The file stays when the lock is released: after a removal, two processes could lock two files of the same name.
    try:
        handle = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        fix = "fix the permissions of the folder, or choose another runs=..."
        raise InputError(f"the folder cannot be locked ({error.strerror})", where=str(folder), fix=fix) from error
    try:
        _take(handle, folder, waiting)
        yield
    finally:
        os.close(handle)


def _take(handle: int, folder: Path, waiting: Callable[[str], AbstractContextManager[object]] | None = None) -> None:
    try:
        lock_file(handle)
    except BlockingIOError as error:
        holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "(unknown)"
        if waiting is not None:
            with waiting(holder):
                lock_file(handle, wait=True)
            _sign(handle)
            return
        fix = "wait for that process or end it, or choose another name=..."
        raise InputError(f"process {holder} is writing this run", where=str(folder), fix=fix) from error
    except OSError as error:
        warn_once(
            "run lock",
            f"{folder}: it cannot be locked ({error.strerror}); do not start a second process here",
        )
        return
    _sign(handle)


def _sign(handle: int) -> None:
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)


@dataclass(frozen=True)
class RunFolder:
    """The paths of the files of a run. To write to the folder, open it with `create` or `resume`."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def provenance(self) -> Path:
        return self.path / "provenance.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def timings(self) -> Path:
        return self.path / "timings.jsonl"

    @property
    def health(self) -> Path:
        return self.path / "health.jsonl"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    def rollouts_of(self, step: int) -> Path:
        return self.rollouts / f"step_{step}.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def checkpoint_of(self, step: int) -> Path:
        return self.checkpoints / f"global_step_{step}"

    def merged_of(self, step: int) -> Path:
        """Folder of the model that was merged from the sharded checkpoint of `step`."""
        return self.path / "merged" / f"step_{step}"

    @property
    def latest(self) -> Path:
        """File that contains the step of the latest checkpoint, named as in verl."""
        return self.checkpoints / "latest_checkpointed_iteration.txt"

    @property
    def evals(self) -> Path:
        return self.path / "evals"

    @property
    def probe(self) -> Path:
        """File with the results of a probe. Its responses and its plot are in the same folder under the same stem."""
        return self.evals / PROBE

    @property
    def verl(self) -> Path:
        """Folder of what verl reads and writes besides the checkpoints: its config, logs and copy of the data."""
        return self.path / "verl"

    @property
    def trackers(self) -> Path:
        return self.path / "trackers"

    def card_of(self, step: int) -> Path:
        """The model card of a checkpoint, as `egpo push` writes it."""
        return self.path / "cards" / f"step_{step}.md"

    @property
    def stages(self) -> Path:
        """File that lists the stages that `egpo run` has completed."""
        return self.path / "stages.json"

    @property
    def removed(self) -> Path:
        """File that says which parts of the checkpoints were removed after the run was evaluated."""
        return self.path / "removed.json"

    @property
    def output(self) -> Path:
        """What `egpo run --parallel` lets the run's own process print."""
        return self.path / "output.log"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def read_config(self) -> str:
        """Return the text of `config.yaml`. Raise InputError if it cannot be read."""
        try:
            return self.config.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            what = f"the config of the run cannot be read ({error!s:.80})"
            raise InputError(what, where=str(self.config), fix="restore the file") from error

    def require_free(self) -> None:
        """Raise InputError if the folder is not empty, as `create` would. Call this before loading a model."""
        if self.path.is_dir():
            _refuse_what_is_there(self)

    def require_there(self) -> None:
        """Raise EgpoError if the run folder was removed during the run: the run could not be resumed later."""
        if not self.config.is_file():
            fix = "move it back, or start the run again"
            raise EgpoError("the run folder was removed or moved during the run", where=str(self.path), fix=fix)

    @classmethod
    @contextmanager
    def create(cls, path: Path, config_yaml: str) -> Iterator["RunFolder"]:
        """Create a run folder and lock it during the block. Raise InputError if the folder is not empty.

        Temporary files of a process that was killed as it created the folder are removed.
        """
        folder = cls(path)
        _require_directory(path)
        with locked(path):
            _refuse_what_is_there(folder)
            _remove_unfinished(folder)
            _write_config(folder, config_yaml)
            yield folder

    @classmethod
    @contextmanager
    def resume(cls, path: Path, config_yaml: str, changed: Mapping[str, Any] | None = None) -> Iterator["RunFolder"]:
        """Open an existing run and lock it during the block.

        Raise ConfigError with the differences if `config_yaml` would change the training (`egpo.runs.differences`);
        other changes are written to `config.yaml`. `changed` contains the settings that are not at their defaults.
        Temporary files of a killed process are removed.
        """
        folder = cls(path)
        if not folder.config.is_file():
            fix = "leave out --resume to start a new run, or check `runs` and `name`"
            raise InputError("there is no run to resume", where=str(path), fix=fix)
        with locked(path):
            _refuse_removed(folder)
            if refuse_other_training(folder.read_config(), config_yaml, str(path), changed):
                _write_config(folder, config_yaml)
            _remove_unfinished(folder)
            yield folder


def _require_directory(path: Path) -> None:
    if path.exists() and not path.is_dir():
        what = "this is a file, but the run needs a folder of that name"
        raise InputError(what, where=str(path), fix="choose another name=... or runs=...")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _write_config(folder: RunFolder, config_yaml: str) -> None:
    try:
        write_atomically(folder.config, config_yaml)
    except OSError as error:
        raise _cannot_write(folder.path, error) from error


def _cannot_write(path: Path, error: OSError) -> InputError:
    fix = "free some space or fix the permissions, or choose another runs=..."
    return InputError(f"the run folder cannot be written ({error.strerror or error})", where=str(path), fix=fix)


def _refuse_what_is_there(folder: RunFolder) -> None:
    if folder.config.exists():
        fix = "continue that run with --resume, or choose another name=..."
        raise InputError("the folder already contains a run", where=str(folder.path), fix=fix)
    # The probe, the list of stages and the output are written before the run starts.
    ours = (LOCK_NAME, UNFINISHED, folder.evals.name, folder.stages.name, folder.output.name)
    held = sorted(entry.name for entry in folder.path.iterdir() if not entry.name.startswith(ours))
    if held:
        more = " and more" if len(held) > 3 else ""
        fix = "choose another name=..."
        what = f"the folder is not empty and not a run (it contains {', '.join(held[:3])}{more})"
        raise InputError(what, where=str(folder.path), fix=fix)


def _refuse_removed(folder: RunFolder) -> None:
    if (removed := read_removed(folder.removed)) is not None:
        fix = "start a new run under another name=..., with `keep` left out or `keep: all`"
        raise InputError(f"the training cannot continue: removed {removed}", where=str(folder.path), fix=fix)


def _remove_unfinished(folder: RunFolder) -> None:
    """Remove the temporary files of a killed process. (Code for checkpoints removes the temporary folders.)"""
    for place in (folder.path, folder.rollouts, folder.evals, folder.checkpoints):
        for path in place.glob(f"{UNFINISHED}*"):
            if path.is_file():
                path.unlink(missing_ok=True)
