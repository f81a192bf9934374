"""Which checkpoints stay.

Checkpoints, each complete or invisible.

checkpoints/global_step_N/actor/huggingface/      the model, as transformers and vLLM load it
                          actor/resume.safetensors  optimizer state, master weights, adapters
                          actor/state.json          counters, stream position, random states
                          actor/manifest.json       size and digest of each of these
checkpoints/latest_checkpointed_iteration.txt     N of the latest, as verl writes it
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from egpo.data.output import StagingFolder, remove_abandoned
from egpo.errors import EgpoError, InputError, warn_once
from egpo.files import UNFINISHED, fsync_path, write_atomically
from egpo.local.checkpoints.manifest import (
    CheckpointManifest,
    describe_files,
    files_below,
    read_manifest,
    verify_files,
    write_manifest,
    write_tensors,
)


def kept_steps(score_of: Mapping[int, float | None], *, keep_last: int, keep_best: int) -> set[int]:
    """The last so many, and besides those of the highest scores; of equal scores the later. A checkpoint without a
    score is never among the best."""
    steps = sorted(score_of)
    scored = [(score, step) for step, score in score_of.items() if score is not None]
    best = sorted(scored, reverse=True)[:keep_best]
    return {*steps[-keep_last:], *(step for _, step in best)}


LATEST = "latest_checkpointed_iteration.txt"
MODEL, TENSORS, STATE = "huggingface", "resume.safetensors", "state.json"

Export = Callable[[Path], None]
"""Writes the model into a folder, with its tokenizer."""


class SaveError(EgpoError):
    """A checkpoint could not be written. What was there before is whole."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All that a run needs to go on from the end of `step`, besides the model itself.

    `state` is what JSON can hold. `score` is what `keep_best` compares; None, or not finite: nothing to compare.
    """

    step: int
    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]
    score: float | None = None


class Checkpoints:
    """The checkpoints of one run.

    `identity` is the digest of the settings that a resumed run must share. `command` starts the run again; messages
    add `--resume` or `--resume-from N` to it.
    """

    def __init__(self, root: Path, *, identity: str, command: str, keep_last: int, keep_best: int) -> None:
        self.root, self.command, self._identity = root, command, identity
        self._keep_last, self._keep_best = keep_last, keep_best

    def steps(self) -> list[int]:
        """Those that are there, in order. What is half written has no such name."""
        found = (re.fullmatch(r"global_step_(\d+)", path.name) for path in self.root.glob("global_step_*"))
        return sorted(int(match[1]) for match in found if match)

    def folder(self, step: int) -> Path:
        return self.root / f"global_step_{step}" / "actor"

    def model_folder(self, step: int) -> Path:
        return self.folder(step) / MODEL

    def choose(self, step: int | None) -> int:
        """Where to go on from: that step, or the newest; 0, the beginning, where there is no checkpoint."""
        steps = self.steps()
        if step is None:
            return steps[-1] if steps else 0
        if step not in steps:
            held = ", ".join(map(str, steps)) or "none"
            raise InputError(f"no checkpoint of step {step}", where=str(self.root), fix=f"there are: {held}")
        return step

    def save(self, snapshot: Snapshot, export: Export) -> None:
        """Written aside, forced to the disk, renamed; then older ones that nobody asked to keep go.

        A SaveError leaves everything as it was. A checkpoint of this step that is there already is the same one.
        """
        if snapshot.step in self.steps():
            return
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with self._aside() as aside:
                self._write(aside / "new", snapshot, export)
                os.rename(aside / "new", self.folder(snapshot.step).parent)
                fsync_path(self.root)
                self._tidy(snapshot.step, aside)
        except (OSError, SafetensorError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "can't start new thread" not in str(error):
                raise
            raise SaveError(
                f"the checkpoint of step {snapshot.step} could not be written ({_reason(error)})",
                where=str(self.root),
                fix="free some space or mend the permissions; older checkpoints are whole, and "
                f"{self.command} --resume goes on from the newest",
            ) from error

    def read(self, step: int) -> Snapshot:
        """Verified to the byte. An InputError names the file that is wrong, and offers the checkpoint before it."""
        folder = self.folder(step)
        try:
            manifest = self._verified(step)
            state = json.loads((folder / STATE).read_text(encoding="utf-8"))
            return Snapshot(step, load_file(folder / TENSORS), state, manifest.score)
        except InputError as error:
            fault = error.faults[0]
            raise InputError(fault.what, where=fault.where, fix=self._advice_before(step)) from error

    def forget_after(self, step: int) -> None:
        """Checkpoints of later steps go: the run is about to take those steps again. So does what a killed process
        left, which a run that is done would keep for ever: it saves no more."""
        if not self.root.is_dir():
            return
        later = {other for other in self.steps() if other > step}
        with self._aside() as aside:
            if later:
                write_atomically(self.root / LATEST, str(step))
                self._remove(later, aside)

    def _write(self, staged: Path, snapshot: Snapshot, export: Export) -> None:
        actor = staged / "actor"
        (actor / MODEL).mkdir(parents=True)
        export(actor / MODEL)
        text = json.dumps(snapshot.state, indent=1, sort_keys=True, allow_nan=False)
        (actor / STATE).write_text(text + "\n", encoding="utf-8")
        with ThreadPoolExecutor(1) as pool:
            others = pool.submit(describe_files, files_below(actor), actor)
            tensors = write_tensors(actor / TENSORS, snapshot.tensors)
        files = {**others.result(), TENSORS: tensors}
        score = snapshot.score if snapshot.score is not None and isfinite(snapshot.score) else None
        write_manifest(actor, CheckpointManifest(snapshot.step, self._identity, score, files))
        for path in [*staged.rglob("*"), staged]:
            fsync_path(path)

    def _tidy(self, newest: int, aside: Path) -> None:
        """The checkpoint stands by now: what fails here costs a warning only."""
        try:
            write_atomically(self.root / LATEST, str(newest))
            self._remove(set(self._scores()) - self._kept(), aside)
        except OSError as error:
            warn_once("checkpoints", f"{self.root}: older checkpoints could not be removed ({_reason(error)})")

    def _verified(self, step: int) -> CheckpointManifest:
        manifest = read_manifest(self.folder(step))
        if manifest.step != step:
            raise InputError(f"holds step {manifest.step}", where=str(self.folder(step).parent))
        if manifest.identity != self._identity:
            raise InputError("belongs to a run with other settings", where=str(self.folder(step).parent))
        verify_files(self.folder(step), manifest)
        return manifest

    def _advice_before(self, step: int) -> str:
        for earlier in reversed([other for other in self.steps() if other < step]):
            try:
                self._verified(earlier)
            except InputError:
                continue
            return f"go on from the one before it: {self.command} --resume-from {earlier}"
        return (
            "no earlier checkpoint is whole and of this run: restore what was edited in its config.yaml, or start anew "
            f"under another name, {self.command} name=..."
        )

    def _scores(self) -> dict[int, float | None]:
        """Of those that are ours: a stranger's folder is never removed to make room."""
        scores = {}
        for step in self.steps():
            try:
                scores[step] = read_manifest(self.folder(step)).score
            except InputError:
                continue
        return scores

    def _kept(self) -> set[int]:
        return kept_steps(self._scores(), keep_last=self._keep_last, keep_best=self._keep_best)

    def _remove(self, steps: set[int], aside: Path) -> None:
        """Renamed first: a checkpoint that is half removed must not look like one."""
        for step in steps:
            os.rename(self.folder(step).parent, aside / f"old_{step}")
        fsync_path(self.root)

    @contextmanager
    def _aside(self) -> Iterator[Path]:
        """A folder that goes when the block is left. What a killed process left goes first."""
        remove_abandoned(self.root)
        for path in self.root.glob(f"{UNFINISHED}{LATEST}*"):
            path.unlink()
        folder = StagingFolder(self.root)
        try:
            yield folder.path
        finally:
            folder.remove()


def room_for(root: Path, num_bytes: int) -> int:
    """How many checkpoints of that size the disk has room for."""
    existing = next(path for path in (root, *root.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free // max(1, num_bytes)


def _reason(error: Exception) -> str:
    """safetensors wraps what the system said: `Error while serializing: I/O error: No space left on device (...)`."""
    said = error.strerror if isinstance(error, OSError) else None
    return said or str(error).rpartition("I/O error: ")[2]
