"""Find the checkpoint that the user names for `egpo merge`, and its shard files. This module imports no torch.

The user may give a run folder or one of these folders in it: `checkpoints`, `checkpoints/global_step_N`, the folder
`actor` in `global_step_N`, or the folder `huggingface` in `actor`.

verl writes the weights as one file per rank: `model_world_size_W_rank_R.pt`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from egpo.errors import InputError
from egpo.runs.folder import SHARD, RunFolder
from egpo.runs.stored import StoredCheckpoint, checkpoint_at, checkpoints_in, latest_step

NOTE = "merge.json"
"""Name of the file in a merged model folder that lists the merged checkpoint, its files and their digests."""


def find_checkpoint(path: Path, step: int | None = None) -> StoredCheckpoint:
    """Return the checkpoint of a step, or the latest complete one if `step` is None. InputError if there is none."""
    if not path.is_dir():
        fix = "give a run, one of its global_step_N folders, or the actor folder in it"
        raise InputError("the folder does not exist", where=str(path), fix=fix)
    folder = path.resolve()
    if steps := checkpoints_in(folder):
        return _chosen(folder, steps, step)
    if (checkpoints := RunFolder(folder).checkpoints).is_dir():
        if steps := checkpoints_in(checkpoints):
            return _chosen(checkpoints, steps, step)
        raise InputError("the run has no checkpoint yet", where=str(path), fix="wait until it saves one")
    found = checkpoint_at(folder)
    if found is None:
        raise _not_a_checkpoint(path)
    return _require_step(found, step)


@dataclass(frozen=True)
class ShardFiles:
    """The shard files of a checkpoint, by rank. The training wrote `world_size` of them; some may be missing."""

    folder: Path
    world_size: int
    paths: Mapping[int, Path]

    def require(self, ranks: Sequence[int]) -> None:
        """Raise an InputError that names the missing ranks if any of these ranks has no shard."""
        missing = [rank for rank in ranks if rank not in self.paths]
        if missing:
            named = ", ".join(map(str, missing))
            raise InputError(
                f"{len(missing)} of {self.world_size} shards are missing: rank {named}",
                where=str(self.folder),
                fix="copy them from the machines of those ranks, or choose another --step",
            )


def find_shards(folder: Path) -> ShardFiles:
    """Return the shards in a folder. InputError if they have several world sizes, and so are from several saves."""
    found: dict[int, dict[int, Path]] = {}
    for path in folder.glob("model_world_size_*"):
        if match := SHARD.fullmatch(path.name):
            found.setdefault(int(match[1]), {})[int(match[2])] = path
    if len(found) > 1:
        sizes = ", ".join(map(str, sorted(found)))
        fix = "remove the files of the other save: world_size in fsdp_config.json and the files' times tell them apart"
        raise InputError(f"the folder has shards of several world sizes: {sizes}", where=str(folder), fix=fix)
    [(world_size, paths)] = found.items()
    return ShardFiles(folder, world_size, paths)


def _chosen(folder: Path, checkpoints: Mapping[int, StoredCheckpoint], step: int | None) -> StoredCheckpoint:
    wanted = latest_step(folder, list(checkpoints)) if step is None else step
    if wanted not in checkpoints:
        known = ", ".join(map(str, checkpoints))
        raise InputError(f"there is no checkpoint of step {wanted}", where=str(folder), fix=f"available steps: {known}")
    if not checkpoints[wanted].exists:
        raise _not_a_checkpoint(checkpoints[wanted].actor.parent)
    return checkpoints[wanted]


def _require_step(found: StoredCheckpoint, wanted: int | None) -> StoredCheckpoint:
    if wanted is not None and wanted != found.step:
        actual = "its step is unknown" if found.step is None else f"it is that of step {found.step}"
        fix = "leave out --step, or give the folder of the run"
        raise InputError(f"this is not the checkpoint of step {wanted}: {actual}", where=str(found.actor), fix=fix)
    return found


def _not_a_checkpoint(path: Path) -> InputError:
    names = ", ".join(sorted(entry.name for entry in path.iterdir())[:4]) or "nothing"
    is_model = (path / "config.json").is_file()
    what = "the folder is already a model" if is_model else f"the folder is not a checkpoint (it contains {names})"
    fix = "give a run, its checkpoints, a global_step_N, or the actor in it"
    return InputError(what, where=str(path), fix=fix)
