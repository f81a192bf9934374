"""One process at a time writes a run. The lock ends with its process, however that ends.

What lies where in `runs/<name>/`, and who may write there.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from egpo.errors import EgpoError, InputError, warn_once
from egpo.files import UNFINISHED, write_atomically
from egpo.runs.differences import refuse_other_training

LOCK_NAME = ".lock"
ACTOR, MODEL = "actor", "huggingface"
"""Inside a checkpoint: the trained policy, and in it the model folder that transformers loads. verl's names."""
SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")
"""verl's name for the part of the weights that one rank saved."""
PROBE = "probe.json"
_CHECKPOINT = re.compile(r"global_step_(\d+)")
_ROLLOUTS = re.compile(r"step_(\d+)\.jsonl")


def checkpoint_step(path: Path) -> int | None:
    """Return N of a folder `global_step_N`; None for any other name."""
    match = _CHECKPOINT.fullmatch(path.name)
    return int(match[1]) if match else None


def rollouts_step(path: Path) -> int | None:
    """Return N of a file `step_N.jsonl`; None for any other name."""
    match = _ROLLOUTS.fullmatch(path.name)
    return int(match[1]) if match else None


@contextmanager
def locked(folder: Path, name: str = LOCK_NAME) -> Iterator[None]:
    """Hold the folder for the length of the block; InputError with the other's process id where it is held. Locks of
    other names (which start with `LOCK_NAME`) are other locks.

    A file system without locks (some network ones) gets a warning: nobody could tell there.
    """
    # The file stays when the lock ends: removing it would let two processes lock two files of one name.
    try:
        handle = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        fix = "mend its permissions, or choose another runs=..."
        raise InputError(f"cannot be locked ({error.strerror})", where=str(folder), fix=fix) from error
    try:
        _take(handle, folder)
        yield
    finally:
        os.close(handle)


def _take(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "of unknown number"
        fix = "wait for it or end it, or choose another name=..."
        raise InputError(f"process {holder} is writing this run", where=str(folder), fix=fix) from error
    except OSError as error:
        warn_once(
            "run lock", f"{folder}: this file system has no locks ({error.strerror}); start no second process here"
        )
        return
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run. Reading needs no more than this; to write, `create` or `resume` it."""

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
        """The model that was made of a checkpoint in shards."""
        return self.path / "merged" / f"step_{step}"

    @property
    def latest(self) -> Path:
        """Holds the number of the latest checkpoint's step, as in verl."""
        return self.checkpoints / "latest_checkpointed_iteration.txt"

    @property
    def evals(self) -> Path:
        return self.path / "evals"

    @property
    def probe(self) -> Path:
        """The figures of a probe; its responses and its picture lie beside it under the same name."""
        return self.evals / PROBE

    @property
    def verl(self) -> Path:
        """What verl reads and writes besides the checkpoints: its config, logs and copy of the data."""
        return self.path / "verl"

    @property
    def trackers(self) -> Path:
        return self.path / "trackers"

    @property
    def stages(self) -> Path:
        """What `egpo run` has done so far."""
        return self.path / "stages.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def require_free(self) -> None:
        """Raises where `create` would: to be asked before a model is loaded for nothing."""
        if self.path.is_dir():
            _refuse_what_is_there(self)

    def require_there(self) -> None:
        """Raises where somebody has removed the folder of a run that is going on: what is written to it after that
        would be no run that can be resumed."""
        if not self.config.is_file():
            fix = "its checkpoints are lost; start it again"
            raise EgpoError(
                "the run folder was removed or moved while the run was going on", where=str(self.path), fix=fix
            )

    @classmethod
    @contextmanager
    def create(cls, path: Path, config_yaml: str) -> Iterator["RunFolder"]:
        """A new run, locked by this process until the block ends. A folder that holds anything is refused."""
        folder = cls(path)
        _require_directory(path)
        with locked(path):
            _refuse_what_is_there(folder)
            _write_config(folder, config_yaml)
            yield folder

    @classmethod
    @contextmanager
    def resume(cls, path: Path, config_yaml: str) -> Iterator["RunFolder"]:
        """The run that is there, locked until the block ends.

        With another config it is refused, and the differences shown, unless they change nothing that is computed
        (`egpo.runs.differences`): then the new config is written. What a killed process left unfinished is removed.
        """
        folder = cls(path)
        if not folder.config.is_file():
            fix = "leave out --resume to start it, or check `runs` and `name`"
            raise InputError("there is no run to resume", where=str(path), fix=fix)
        with locked(path):
            if refuse_other_training(folder.config.read_text(encoding="utf-8"), config_yaml, str(path)):
                _write_config(folder, config_yaml)
            _remove_unfinished(folder)
            yield folder


def _require_directory(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise InputError("is a file", where=str(path), fix="choose another name=... or runs=...")
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
    fix = "free some space or mend the permissions, or choose another runs=..."
    return InputError(f"cannot write there ({error.strerror or error})", where=str(path), fix=fix)


def _refuse_what_is_there(folder: RunFolder) -> None:
    if folder.config.exists():
        fix = "go on with it by --resume, or choose another name=..."
        raise InputError("already holds a run", where=str(folder.path), fix=fix)
    # A probe comes before its run, and is a part of it; so does the record of the stages.
    ours = (LOCK_NAME, UNFINISHED, folder.evals.name, folder.stages.name)
    held = sorted(entry.name for entry in folder.path.iterdir() if not entry.name.startswith(ours))
    if held:
        more = " and more" if len(held) > 3 else ""
        fix = "choose another name=..."
        raise InputError(f"holds {', '.join(held[:3])}{more}, and no run", where=str(folder.path), fix=fix)


def _remove_unfinished(folder: RunFolder) -> None:
    """Files only: folders under way are the checkpoints' business."""
    for place in (folder.path, folder.rollouts, folder.evals, folder.checkpoints):
        for path in place.glob(f"{UNFINISHED}*"):
            if path.is_file():
                path.unlink(missing_ok=True)
