"""Checkpoints, each complete or absent.

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
    CHANGED_SETTINGS,
    CheckpointManifest,
    describe_files,
    files_below,
    read_manifest,
    verify_files,
    write_manifest,
    write_tensors,
)

LATEST = "latest_checkpointed_iteration.txt"
MODEL, TENSORS, STATE = "huggingface", "resume.safetensors", "state.json"

Export = Callable[[Path], None]
"""A function that writes the model and its tokenizer into a folder."""


class SaveError(EgpoError):
    """A checkpoint could not be written. Earlier checkpoints are complete."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What a run needs to continue after `step`, besides the model itself.

    `state` holds JSON values. `score` is compared by `keep_best`; None or not finite: the checkpoint has no score.
    """

    step: int
    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]
    score: float | None = None


class Checkpoints:
    """The checkpoints of one run.

    `identity` is the digest of the settings that a resumed run must share. `command` starts the run; messages append
    `--resume` or `--resume-from N` to it.
    """

    def __init__(self, root: Path, *, identity: str, command: str, keep_last: int, keep_best: int) -> None:
        self.root, self.command, self._identity = root, command, identity
        self._keep_last, self._keep_best = keep_last, keep_best

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, in order. An incomplete checkpoint has another name."""
        found = (re.fullmatch(r"global_step_(\d+)", path.name) for path in self.root.glob("global_step_*"))
        return sorted(int(match[1]) for match in found if match)

    def folder(self, step: int) -> Path:
        return self.root / f"global_step_{step}" / "actor"

    def model_folder(self, step: int) -> Path:
        return self.folder(step) / MODEL

    def choose(self, step: int | None) -> int:
        """Return the step to continue from: `step`, or the newest; 0 (the beginning) where there is no checkpoint."""
        steps = self.steps()
        if step is None:
            return steps[-1] if steps else 0
        if step not in steps:
            held = ", ".join(map(str, steps)) or "none"
            raise InputError(f"no checkpoint of step {step}", where=str(self.root), fix=f"there are: {held}")
        return step

    def save(self, snapshot: Snapshot, export: Export) -> None:
        """Write to a temporary folder, sync to disk, rename; then remove older checkpoints that are not to be kept.

        A SaveError leaves everything as it was. An existing checkpoint of this step is kept: it is the same.
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
                fix="free some space or fix the permissions; older checkpoints are complete, and "
                f"{self.command} --resume continues from the newest",
            ) from error

    def read(self, step: int) -> Snapshot:
        """Read a checkpoint and verify every byte. InputError names the damaged file and an earlier checkpoint."""
        folder = self.folder(step)
        try:
            manifest = self._verified(step)
            state = json.loads((folder / STATE).read_text(encoding="utf-8"))
            return Snapshot(step, load_file(folder / TENSORS), state, manifest.score)
        except InputError as error:
            fault = error.faults[0]
            raise InputError(fault.what, where=fault.where, fix=self._advice_before(step)) from error

    def forget_after(self, step: int) -> None:
        """Remove the checkpoints of later steps: the run will take those steps again.

        Also remove what a killed process left: a run that is already complete would never save again, and so never
        remove it.
        """
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
        """Update `latest` and remove old checkpoints. A failure is only a warning: the new checkpoint is complete."""
        try:
            write_atomically(self.root / LATEST, str(newest))
            self._remove(set(self._scores()) - self._kept(), aside)
        except OSError as error:
            warn_once("checkpoints", f"{self.root}: older checkpoints could not be removed ({_reason(error)})")

    def _verified(self, step: int) -> CheckpointManifest:
        manifest = read_manifest(self.folder(step))
        if manifest.step != step:
            raise InputError(f"contains step {manifest.step}", where=str(self.folder(step).parent))
        # Digests of earlier versions cover every setting, and change when one is added: `config.yaml` was compared.
        if manifest.identity.startswith(CHANGED_SETTINGS) and manifest.identity != self._identity:
            raise InputError("belongs to a run with other settings", where=str(self.folder(step).parent))
        verify_files(self.folder(step), manifest)
        return manifest

    def _advice_before(self, step: int) -> str:
        for earlier in reversed([other for other in self.steps() if other < step]):
            try:
                self._verified(earlier)
            except InputError:
                continue
            return f"continue from the one before it: {self.command} --resume-from {earlier}"
        return (
            "no earlier checkpoint of this run is complete: restore the original config.yaml, or start a new run "
            f"under another name, {self.command} name=..."
        )

    def _scores(self) -> dict[int, float | None]:
        """Return the score of each checkpoint of this engine. Other folders are never removed."""
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
        """Rename, then remove: a half-removed folder must not look like a checkpoint."""
        for step in steps:
            os.rename(self.folder(step).parent, aside / f"old_{step}")
        fsync_path(self.root)

    @contextmanager
    def _aside(self) -> Iterator[Path]:
        """Create a temporary folder for the block. Remove those that killed processes left."""
        remove_abandoned(self.root)
        for path in self.root.glob(f"{UNFINISHED}{LATEST}*"):
            path.unlink()
        folder = StagingFolder(self.root)
        try:
            yield folder.path
        finally:
            folder.remove()


def kept_steps(score_of: Mapping[int, float | None], *, keep_last: int, keep_best: int) -> set[int]:
    """Return the steps to keep: the last `keep_last`, and the `keep_best` with the highest scores.

    Of equal scores the later one is kept. A checkpoint without a score is never among the best.
    """
    steps = sorted(score_of)
    scored = [(score, step) for step, score in score_of.items() if score is not None]
    best = sorted(scored, reverse=True)[:keep_best]
    return {*steps[-keep_last:], *(step for _, step in best)}


def room_for(root: Path, num_bytes: int) -> int:
    """Return how many checkpoints of that size fit on the disk."""
    existing = next(path for path in (root, *root.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free // max(1, num_bytes)


def _reason(error: Exception) -> str:
    """Return the system's message out of safetensors' `Error while serializing: I/O error: No space left on ...`."""
    said = error.strerror if isinstance(error, OSError) else None
    return said or str(error).rpartition("I/O error: ")[2]
