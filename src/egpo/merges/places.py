"""The names of verl's shards: `model_world_size_W_rank_R.pt`, one for every rank. No torch.

Which checkpoint is meant: by a run, its checkpoints, one step of them, or the actor of a step.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from egpo.errors import InputError
from egpo.runs.folder import RunFolder

_NAME = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


@dataclass(frozen=True)
class ShardFiles:
    """Those that are there, by rank, out of `world_size`."""

    folder: Path
    world_size: int
    paths: Mapping[int, Path]

    def require(self, ranks: Sequence[int]) -> None:
        missing = [rank for rank in ranks if rank not in self.paths]
        if missing:
            named = ", ".join(map(str, missing))
            raise InputError(
                f"of its {self.world_size} shards {len(missing)} missing: rank {named}",
                where=str(self.folder),
                fix="copy them from the machines of those ranks, or choose another --step",
            )


def has_shards(folder: Path) -> bool:
    return any(_NAME.fullmatch(path.name) for path in folder.glob("model_world_size_*"))


def find_shards(folder: Path) -> ShardFiles:
    """An InputError where the files are of several world sizes: nothing says which of them is the checkpoint."""
    found: dict[int, dict[int, Path]] = {}
    for path in folder.glob("model_world_size_*"):
        if match := _NAME.fullmatch(path.name):
            found.setdefault(int(match[1]), {})[int(match[2])] = path
    if len(found) > 1:
        sizes = ", ".join(map(str, sorted(found)))
        fix = "move those of the other away: which one is meant shows in fsdp_config.json, and in the files' times"
        raise InputError(f"shards of several world sizes: {sizes}", where=str(folder), fix=fix)
    [(world_size, paths)] = found.items()
    return ShardFiles(folder, world_size, paths)


MODEL = "huggingface"
_STEP = re.compile(r"global_step_(\d+)")
_LATEST = RunFolder(Path()).latest.name


@dataclass(frozen=True)
class CheckpointPlace:
    """`actor` holds shards, or the folder `huggingface`, or both. `step` is None where no folder's name tells it."""

    actor: Path
    step: int | None

    @property
    def model(self) -> Path:
        """Config and tokenizer; the weights too, unless they lie in shards."""
        return self.actor / MODEL

    @property
    def run(self) -> RunFolder | None:
        """The run that it is a checkpoint of, where it lies in one of ours."""
        run = RunFolder(self.actor.parent.parent.parent)
        return run if run.config.is_file() and self.actor.parent.parent == run.checkpoints else None


def find_checkpoint(path: Path, step: int | None = None) -> CheckpointPlace:
    """The latest where `step` is None: the one that `latest_checkpointed_iteration.txt` names, for that is written
    when the checkpoint is whole; without it the one with the highest number."""
    if not path.is_dir():
        raise InputError("no such folder", where=str(path), fix="give a run, a global_step_N of it, or its actor")
    folder = path.resolve()
    if steps := _steps(folder):
        return _chosen(folder, steps, step)
    if (checkpoints := RunFolder(folder).checkpoints).is_dir():
        if steps := _steps(checkpoints):
            return _chosen(checkpoints, steps, step)
        raise InputError("the run has no checkpoint yet", where=str(path), fix="let it train until it saves one")
    inside = [folder.parent] if folder.name == MODEL else []
    actor = next((place for place in (folder, folder / "actor", *inside) if _is_actor(place)), None)
    if actor is None:
        raise _no_checkpoint(path)
    return _of_step(CheckpointPlace(actor, _number(actor.parent)), step)


def _steps(folder: Path) -> dict[int, Path]:
    return {number: entry for entry in folder.glob("global_step_*") if (number := _number(entry)) is not None}


def _number(folder: Path) -> int | None:
    match = _STEP.fullmatch(folder.name)
    return int(match[1]) if match else None


def _is_actor(folder: Path) -> bool:
    return has_shards(folder) or (folder / MODEL).is_dir()


def _chosen(checkpoints: Path, steps: dict[int, Path], wanted: int | None) -> CheckpointPlace:
    if wanted is None:
        wanted = _latest(checkpoints, steps)
    if wanted not in steps:
        held = ", ".join(map(str, sorted(steps)))
        raise InputError(f"no checkpoint of step {wanted}", where=str(checkpoints), fix=f"there are: {held}")
    if not _is_actor(steps[wanted] / "actor"):
        raise _no_checkpoint(steps[wanted])
    return CheckpointPlace(steps[wanted] / "actor", wanted)


def _latest(checkpoints: Path, steps: dict[int, Path]) -> int:
    pointer = checkpoints / _LATEST
    said = pointer.read_text(encoding="utf-8", errors="replace").strip() if pointer.is_file() else ""
    if said.isdecimal() and int(said) in steps:
        return int(said)
    return max(steps)


def _of_step(place: CheckpointPlace, wanted: int | None) -> CheckpointPlace:
    if wanted is not None and wanted != place.step:
        said = "of no known step" if place.step is None else f"that of step {place.step}"
        fix = "leave out --step, or give the folder of the run"
        raise InputError(f"this checkpoint is {said}, not {wanted}", where=str(place.actor), fix=fix)
    return place


def _no_checkpoint(path: Path) -> InputError:
    held = ", ".join(sorted(entry.name for entry in path.iterdir())[:4]) or "nothing"
    what = "a model already" if (path / "config.json").is_file() else f"not a checkpoint (it holds {held})"
    fix = "give a run, its checkpoints, a global_step_N, or the actor in it"
    return InputError(what, where=str(path), fix=fix)
