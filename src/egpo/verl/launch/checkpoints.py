"""verl's checkpoints in our run folder: which are whole, and which one a run goes on from."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from egpo.errors import InputError
from egpo.files import write_atomically
from egpo.runs.folder import RunFolder


@dataclass(frozen=True)
class VerlCheckpoints:
    """`global_step_N/actor/model_world_size_W_rank_R.pt` for each of `ranks`; verl writes the latest's number last."""

    folder: RunFolder
    ranks: int

    def complete_steps(self) -> list[int]:
        """In order. What is newer than the latest that verl names was cut off while it was written."""
        latest = self._latest()
        return [step for step in self._steps() if step <= latest and self._is_whole(step)]

    def has_after(self, step: int) -> bool:
        """Of a later step, whole or still being written."""
        return any(later > step for later in self._steps())

    def choose(self, step: int | None) -> int:
        """The newest, or that of `step`; 0 where there is none yet. An InputError names those that there are."""
        there = self.complete_steps()
        if step is None:
            return there[-1] if there else 0
        if step not in there:
            known = f"there are those of steps {', '.join(map(str, there))}" if there else "there is none yet"
            where = str(self.folder.checkpoints)
            raise InputError(f"no whole checkpoint of step {step}", where=where, fix=known)
        return step

    def forget_after(self, step: int) -> None:
        """Later ones go, whole or not: the run is about to write them again."""
        for later in self._steps():
            if later > step:
                shutil.rmtree(self.folder.checkpoint_of(later))
        if step:
            write_atomically(self.folder.latest, str(step))
        else:
            self.folder.latest.unlink(missing_ok=True)

    def _steps(self) -> list[int]:
        names = [path.name.removeprefix("global_step_") for path in self.folder.checkpoints.glob("global_step_*")]
        return sorted(int(name) for name in names if name.isdecimal())

    def _latest(self) -> int:
        """0 before the first. verl writes the number in place, after all else of a checkpoint: where a crash left none
        in the file, every checkpoint that has its files is whole."""
        if not self.folder.latest.exists():
            return 0
        number = self.folder.latest.read_text(encoding="utf-8", errors="replace").strip()
        return int(number) if number.isdecimal() else max(self._steps(), default=0)

    def _is_whole(self, step: int) -> bool:
        folder: Path = self.folder.checkpoint_of(step)
        names = [f"model_world_size_{self.ranks}_rank_{rank}.pt" for rank in range(self.ranks)]
        return (folder / "data.pt").is_file() and all((folder / "actor" / name).is_file() for name in names)
