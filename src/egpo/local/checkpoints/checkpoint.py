"""The checkpoint folders of a run, each complete or absent.

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
from egpo.files import UNFINISHED, fsync_path, fsync_tree, system_error, write_atomically
from egpo.local.checkpoints.tensor_files import write_tensors
from egpo.runs.checkpoint_manifest import (
    CHANGED_SETTINGS,
    CheckpointManifest,
    describe_files,
    files_below,
    read_manifest,
    verify_files,
    write_manifest,
)

LATEST = "latest_checkpointed_iteration.txt"
MODEL, TENSORS, STATE = "huggingface", "resume.safetensors", "state.json"

Export = Callable[[Path], None]
"""A function that writes the model and its tokenizer into a folder."""


class SaveError(EgpoError):
    """The error for a checkpoint that could not be written. Earlier checkpoints stay complete."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state that a run needs to continue after `step`, besides the model itself.

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
        """Return the steps that have a complete checkpoint, in order. Folders of incomplete ones have other names."""
        found = (re.fullmatch(r"global_step_(\d+)", path.name) for path in self.root.glob("global_step_*"))
        return sorted(int(match[1]) for match in found if match)

    def folder(self, step: int) -> Path:
        return self.root / f"global_step_{step}" / "actor"

    def model_folder(self, step: int) -> Path:
        return self.folder(step) / MODEL

    def choose(self, step: int | None) -> int:
        """Return the step to continue from: `step`, or the newest if None; 0 (the beginning) without a checkpoint."""
        steps = self.steps()
        if step is None:
            return steps[-1] if steps else 0
        if step not in steps:
            held = ", ".join(map(str, steps)) or "none"
            raise InputError(
                f"no checkpoint of step {step}", where=str(self.root), fix=f"steps with a checkpoint: {held}"
            )
        return step

    def save(self, snapshot: Snapshot, export: Export) -> None:
        """Write a checkpoint, and remove older ones that are not to be kept.

        The files are written to a temporary folder, synced to disk, and renamed. If that fails, SaveError is raised and
        nothing has changed. An existing checkpoint of the same step is kept: its content is the same.
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
        except Exception as error:  # boundary: tokenizers reports a full disk as a plain Exception
            known = isinstance(error, SafetensorError) or "can't start new thread" in str(error)
            if not known and system_error(error) is None:
                raise
            raise SaveError(
                f"the checkpoint of step {snapshot.step} could not be written ({_reason(error)})",
                where=str(self.root),
                fix="free some space or fix the permissions; older checkpoints are complete, and "
                f"{self.command} --resume continues from the newest",
            ) from error

    def read(self, step: int) -> Snapshot:
        """Read a checkpoint and verify every byte.

        If the checkpoint is damaged or belongs to other settings, raise InputError. The message names the newest
        earlier checkpoint that can be used.
        """
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

        Also remove temporary files of killed processes: a run that is already complete saves nothing more, so no later
        save would remove them.
        """
        if not self.root.is_dir():
            return
        later = {other for other in self.steps() if other > step}
        try:
            with self._aside() as aside:
                if later:
                    write_atomically(self.root / LATEST, str(step))
                    self._remove(later, aside)
                if step in self.steps():  # a process that was killed right after a save has not done this
                    self._tidy(step, aside)
        except OSError as error:
            what = f"the checkpoints after step {step} cannot be removed ({_reason(error)})"
            fix = "free some space or fix the permissions, then run the same command again"
            raise EgpoError(what, where=str(self.root), fix=fix) from error

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
        fsync_tree(staged)

    def _tidy(self, newest: int, aside: Path) -> None:
        """Write the step of the latest checkpoint, and remove old ones.

        Only warn on failure: the new one is complete.
        """
        try:
            write_atomically(self.root / LATEST, str(newest))
            self._remove(set(self._scores()) - self._kept(), aside)
        except OSError as error:
            warn_once("checkpoints", f"{self.root}: older checkpoints could not be removed ({_reason(error)})")

    def _verified(self, step: int) -> CheckpointManifest:
        manifest = read_manifest(self.folder(step))
        if manifest.step != step:
            what = f"the folder of step {step} contains a checkpoint of step {manifest.step}"
            raise InputError(what, where=str(self.folder(step).parent))
        # Digests of earlier versions cover every setting, and change when one is added: `config.yaml` was compared.
        if manifest.identity.startswith(CHANGED_SETTINGS) and manifest.identity != self._identity:
            what = "the checkpoint belongs to a run with other settings"
            raise InputError(what, where=str(self.folder(step).parent))
        verify_files(self.folder(step), manifest)
        return manifest

    def _advice_before(self, step: int) -> str:
        for earlier in reversed([other for other in self.steps() if other < step]):
            try:
                self._verified(earlier)
            except InputError:
                continue
            return f"continue from an earlier checkpoint: {self.command} --resume-from {earlier}"
        return (
            "no earlier checkpoint of this run is complete: restore the original config.yaml, or start a new run "
            f"under another name, {self.command} name=..."
        )

    def _scores(self) -> dict[int, float | None]:
        """Return the score of each checkpoint that this engine wrote.

        Other folders are left out: they are never removed.
        """
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
        """Move checkpoints to the temporary folder `aside`, which is removed later.

        A half-removed folder must not look like a checkpoint.
        """
        for step in steps:
            os.rename(self.folder(step).parent, aside / f"old_{step}")
        fsync_path(self.root)

    @contextmanager
    def _aside(self) -> Iterator[Path]:
        """Create a temporary folder for the `with` block, and remove those that killed processes left behind."""
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
    """Return how many checkpoints of `num_bytes` fit on the disk."""
    existing = next(path for path in (root, *root.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free // max(1, num_bytes)


def _reason(error: Exception) -> str:
    """Return the message of the operating system, such as `No space left on device`, without safetensors' prefix."""
    known = system_error(error)
    return (known.strerror if known else None) or str(error).rpartition("I/O error: ")[2]
