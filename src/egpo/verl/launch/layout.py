"""Paths of the files in a run folder that only a run under verl has: `verl/` and `verl.log`."""

from dataclasses import dataclass
from pathlib import Path

from egpo.runs.folder import RunFolder


@dataclass(frozen=True)
class VerlPlaces:
    """Absolute paths, because Ray's workers run in other working directories."""

    folder: RunFolder

    @property
    def root(self) -> Path:
        return self.folder.verl.absolute()

    @property
    def log(self) -> Path:
        """The output of verl, Ray and vLLM, of every launch."""
        return self.folder.path.absolute() / "verl.log"

    @property
    def rollouts(self) -> Path:
        """Dumps of step N, `N.jsonl`, before they are moved into the run folder."""
        return self.root / "rollouts"

    @property
    def validations(self) -> Path:
        return self.root / "validations"

    @property
    def hydra(self) -> Path:
        return self.root / "hydra"

    @property
    def data(self) -> Path:
        """The task's problems as parquet files for verl."""
        return self.root / "data"

    @property
    def launch(self) -> Path:
        """The running processes, so that the next launch can end them if this launcher is killed."""
        return self.root / "launch.json"

    def metrics_of(self, launch_id: str) -> Path:
        """The metrics of one launch: verl's file logger overwrites its file at every start."""
        return self.root / f"metrics_{launch_id}.jsonl"
