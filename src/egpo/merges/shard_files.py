"""The names of verl's shards: `model_world_size_W_rank_R.pt`, one for every rank. No torch."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from egpo.errors import InputError

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
