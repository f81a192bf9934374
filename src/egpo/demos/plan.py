"""How much a demo does, and where it lies."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from egpo.config import Config, load_config
from egpo.errors import InputError
from egpo.files import UNFINISHED, write_atomically
from egpo.runs.folder import RunFolder

RECIPE = Path(__file__).parent / "countdown.yaml"
BASE = "egpo-tiny"
_MOST_VALIDATED = 64  # a curve to look at; the evaluation has the figures


@dataclass(frozen=True)
class Plan:
    """`steps` of `prompts` problems with each estimator; an evaluation on the first `eval_problems` of the test split,
    `eval_n` responses each; a probe of `probe_problems` of the training split, `probe_n` responses each."""

    steps: int
    prompts: int
    eval_problems: int
    eval_n: int
    probe_problems: int
    probe_n: int


FULL = Plan(steps=40, prompts=16, eval_problems=256, eval_n=8, probe_problems=64, probe_n=16)
FAST = Plan(steps=6, prompts=16, eval_problems=64, eval_n=4, probe_problems=32, probe_n=8)


@dataclass(frozen=True)
class DemoFolder:
    """`data`, the probe, a run for each estimator, and the report of all."""

    path: Path

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def probe(self) -> Path:
        return self.path / "probe"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def run_of(self, estimator: str) -> RunFolder:
        return RunFolder(self.path / estimator)

    @property
    def _plan(self) -> Path:
        return self.path / "plan.json"

    def claim(self, plan: Plan) -> None:
        """What an earlier call left is gone on with, if it had the same plan; else an InputError."""
        wanted = json.dumps(asdict(plan), indent=2) + "\n"
        if self._plan.is_file():
            if self._plan.read_text(encoding="utf-8") != wanted:
                fix = "give another --out, or the same words as then"
                raise InputError("holds a demo of another size", where=str(self.path), fix=fix)
            return
        if self.path.exists() and (not self.path.is_dir() or self._holds_something()):
            raise InputError("holds something else than a demo", where=str(self.path), fix="give another --out")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self._plan, wanted)
        except OSError as error:
            fix = "give another --out"
            raise InputError(f"cannot write there ({error.strerror})", where=str(self.path), fix=fix) from error

    def _holds_something(self) -> bool:
        """Besides what an earlier call left when it was killed in the middle of its first file."""
        return any(not entry.name.startswith(UNFINISHED) for entry in self.path.iterdir())


def demo_config(folder: DemoFolder, plan: Plan, estimator: str) -> Config:
    """Seed, data and settings are those of the other estimators: only `algorithm.estimator` differs, and the name."""
    overrides = {
        "name": estimator,
        "runs": str(folder.path),
        "steps": plan.steps,
        "rollout.prompts": plan.prompts,
        "validation.problems": min(_MOST_VALIDATED, plan.eval_problems),
        "algorithm.estimator": estimator,
        "task.settings.source": str(folder.data),
    }
    return load_config(RECIPE, [f"{key}={json.dumps(value)}" for key, value in overrides.items()])
