"""Paths of the files in a run folder that only a run under verl has: `verl/` and `verl.log`."""

from dataclasses import dataclass
from pathlib import Path

from egpo.runs.folder import RunFolder


@dataclass(frozen=True)
class VerlPlaces:
    """Paths of verl's files in a run folder. They are absolute: Ray's workers run in other working directories."""

    folder: RunFolder

    @property
    def root(self) -> Path:
        return self.folder.verl.absolute()

    @property
    def log(self) -> Path:
        """Log file with the output of verl, Ray and vLLM from every launch."""
        return self.folder.path.absolute() / "verl.log"

    @property
    def rollouts(self) -> Path:
        """Folder in which verl writes the responses of step N as `N.jsonl`.

        The launcher moves these files to `rollouts` of the run folder, as under the embedded engine.
        """
        return self.root / "rollouts"

    @property
    def validations(self) -> Path:
        return self.root / "validations"

    @property
    def hydra(self) -> Path:
        return self.root / "hydra"

    @property
    def data(self) -> Path:
        """Folder with the task's problems as parquet files for verl."""
        return self.root / "data"

    @property
    def launch(self) -> Path:
        """File that lists the running processes, so that the next launch can end them if this launcher is killed."""
        return self.root / "launch.json"

    @property
    def starts(self) -> Path:
        """File with a line per launch that recorded a step: seconds from the start of verl to each stage of its
        start-up, and to that step."""
        return self.root / "starts.jsonl"

    def metrics_of(self, launch_id: str) -> Path:
        """Return the metrics file of one launch. Each launch has its own: verl overwrites the file when it starts."""
        return self.root / f"metrics_{launch_id}.jsonl"
