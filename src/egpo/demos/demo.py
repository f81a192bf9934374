"""The command `egpo demo`: run `countdown.yaml` once per estimator, as `egpo run` does, and write one report.

`DemoFolder`, `DemoSize` and `Demo` also serve the demo with a real model (`sums`).
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from egpo.config import Config, load_config
from egpo.demos.findings import BASE
from egpo.demos.forecast import forecast_and_outcome
from egpo.errors import InputError
from egpo.evals.evaluate import StoredEvaluation, read_evaluation
from egpo.experiments.evaluations import evaluation_file
from egpo.experiments.exams import exams_of
from egpo.experiments.experiment import Experiment
from egpo.experiments.pipeline import run_each
from egpo.experiments.screen import Screen
from egpo.experiments.stages import Selection
from egpo.files import UNFINISHED, write_atomically
from egpo.reports import write_report
from egpo.runs.folder import PROBE, RunFolder

RECIPE = Path(__file__).parent / "countdown.yaml"
SHOWN = ("grpo", "egpo", "egpo_calibrated")
"""The estimators that the demo compares."""
MANNERS = ("sampled", "greedy")
"""The two ways of answering in an evaluation, in the order in which `exams_of` returns their exams."""
# Maximum number of validation problems: validation only draws a curve; the reported figures come from the evaluation.
_MOST_VALIDATED = 64


@dataclass(frozen=True)
class DemoSize:
    """The size of a demo: numbers of training steps, problems and responses.

    Each estimator trains for `steps` steps of `prompts` problems. The evaluation uses the first `eval_problems` of the
    test split, the probe `probe_problems` of the training split; `eval_n` and `probe_n` are responses per problem.
    """

    steps: int
    prompts: int
    eval_problems: int
    eval_n: int
    probe_problems: int
    probe_n: int


FULL = DemoSize(steps=40, prompts=16, eval_problems=256, eval_n=8, probe_problems=64, probe_n=16)
FAST = DemoSize(steps=6, prompts=16, eval_problems=64, eval_n=4, probe_problems=32, probe_n=8)


@dataclass(frozen=True)
class DemoFolder:
    """The folder of a demo: `data`, `probe`, one run per estimator, `report.html`, and `plan.json` with the size."""

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
    def _size(self) -> Path:
        return self.path / "plan.json"

    def claim(self, size: DemoSize) -> None:
        """Create the folder, or accept one with a demo of the same size. InputError if it contains anything else."""
        wanted = json.dumps(asdict(size), indent=2) + "\n"
        if self._size.is_file():
            if self._size.read_text(encoding="utf-8") != wanted:
                fix = "choose another folder with --out, or use the same options as before"
                raise InputError("the folder contains a demo of another size or model", where=str(self.path), fix=fix)
            return
        if self.path.exists() and (not self.path.is_dir() or self._holds_something()):
            fix = "choose another folder with --out"
            raise InputError("the folder contains files that no demo wrote", where=str(self.path), fix=fix)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self._size, wanted)
        except OSError as error:
            fix = "choose another folder with --out"
            raise InputError(
                f"the folder cannot be written ({error.strerror})", where=str(self.path), fix=fix
            ) from error

    def _holds_something(self) -> bool:
        """Return whether the folder contains any file except unfinished ones, which an interrupted demo may leave."""
        return any(not entry.name.startswith(UNFINISHED) for entry in self.path.iterdir())


@dataclass(frozen=True)
class Demo:
    """The results of a demo.

    `evaluations` are by manner (`sampled`, `greedy`), then by model. `forecast` is a sentence that compares the probe's
    forecast with the measurement, `report` the path of the report, and `took_s` the seconds that the call took.
    """

    evaluations: Mapping[str, Mapping[str, StoredEvaluation]]
    forecast: str
    report: Path
    took_s: float

    def base(self, manner: str) -> StoredEvaluation:
        """Return the evaluation of the base model."""
        return next(iter(self.evaluations[manner].values()))


def run_demo(folder: DemoFolder, size: DemoSize, screen: Screen) -> Demo:
    """Run the demo and return its results. Finished jobs are skipped, so that an interrupted demo continues."""
    start = time.monotonic()
    folder.claim(size)
    experiments = {name: Experiment("egpo demo", demo_config(folder, size, name)) for name in SHOWN}
    runs = list(experiments.values())
    run_each(runs, Selection(), screen)
    _copy_probe(runs[0].run, folder)
    report = write_report([experiment.run.path for experiment in runs], folder.report)
    forecast = forecast_and_outcome(folder.probe / PROBE, [experiment.config for experiment in runs])
    return Demo(stored_evaluations(runs[0], experiments, BASE), forecast, report, time.monotonic() - start)


def demo_config(folder: DemoFolder, size: DemoSize, estimator: str) -> Config:
    """Return the config of the demo's run with this estimator. The runs differ only in their estimator and name."""
    overrides = {
        "name": estimator,
        "runs": str(folder.path),
        "steps": size.steps,
        "rollout.prompts": size.prompts,
        "validation.problems": min(_MOST_VALIDATED, size.eval_problems),
        "algorithm.estimator": estimator,
        "prepare.folder": str(folder.data),
        "probe.problems": size.probe_problems,
        "probe.n": size.probe_n,
        "eval.problems": size.eval_problems,
        "eval.n": size.eval_n,
    }
    return load_config(RECIPE, [f"{key}={json.dumps(value)}" for key, value in overrides.items()])


def _copy_probe(run: RunFolder, folder: DemoFolder) -> None:
    """Copy the base model's probe, which all runs share, from the first run into the demo folder."""
    folder.probe.mkdir(exist_ok=True)
    for path in (run.evals / PROBE).parent.glob(f"{Path(PROBE).stem}.*"):
        write_atomically(folder.probe / path.name, path.read_bytes())


def stored_evaluations(
    first: Experiment, experiments: Mapping[str, Experiment], base: str
) -> dict[str, dict[str, StoredEvaluation]]:
    """Return the evaluations by manner (`sampled`, `greedy`), then by model: the base, and one per experiment.

    The base model's are those in the run of `first`; `base` is its name.
    """
    found: dict[str, dict[str, StoredEvaluation]] = {}
    for manner, exam in zip(MANNERS, exams_of(first.training), strict=True):
        found[manner] = {base: read_evaluation(evaluation_file(first, "base", exam))}
        for name, experiment in experiments.items():
            found[manner][name] = read_evaluation(evaluation_file(experiment, "trained", exam))
    return found
