"""Where a verl run keeps what only verl writes: `verl/` in the run folder."""

from dataclasses import dataclass
from pathlib import Path

from egpo.runs.folder import RunFolder


@dataclass(frozen=True)
class VerlPlaces:
    """Absolute: Ray's workers have working directories of their own."""

    folder: RunFolder

    @property
    def root(self) -> Path:
        return self.folder.verl.absolute()

    @property
    def log(self) -> Path:
        """All that verl, Ray and vLLM said, of every launch."""
        return self.folder.path.absolute() / "verl.log"

    @property
    def rollouts(self) -> Path:
        """verl's own dumps, `N.jsonl`."""
        return self.root / "rollouts"

    @property
    def validations(self) -> Path:
        return self.root / "validations"

    @property
    def hydra(self) -> Path:
        return self.root / "hydra"

    @property
    def data(self) -> Path:
        """The task's problems as verl reads them."""
        return self.root / "data"

    @property
    def launch(self) -> Path:
        """Which processes are at work, for whoever comes after a launcher that was killed."""
        return self.root / "launch.json"

    def metrics_of(self, launch_id: str) -> Path:
        """verl's file logger begins its file anew each time: one for each launch."""
        return self.root / f"metrics_{launch_id}.jsonl"
