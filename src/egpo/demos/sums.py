"""The demo with a real model, `egpo demo --model NAME`: GRPO on short sums, from the model as it is.

`sums.yaml` is the recipe. The base model is probed and evaluated first, so that the forecast after the first training
step knows how long an evaluation takes. Finished stages are skipped, so that an interrupted demo continues.
"""

import json
import random
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from egpo.config import Config, load_config
from egpo.demos.demo import Demo, DemoFolder, DemoSize, stored_evaluations
from egpo.demos.forecast import forecast_and_outcome
from egpo.errors import EgpoWarning, InputError
from egpo.experiments.experiment import Experiment
from egpo.experiments.pipeline import run_stages
from egpo.experiments.screen import Screen
from egpo.experiments.stages import Selection
from egpo.files import write_atomically
from egpo.plans.shapes import read_shape
from egpo.reports import write_report
from egpo.runs.folder import PROBE
from egpo.runs.formatting import format_duration
from egpo.runs.ledger import StepReport
from egpo.runs.metric_table import STEP_S

RECIPE = Path(__file__).parent / "sums.yaml"
LARGEST = 40
"""The largest number in a sum; the smallest is 1."""
EXAMPLES = ((3, 4), (11, 8))
"""The sums that every prompt shows with their answers. They are no problems of the task."""
MOST_WEIGHTS = 400_000_000
"""The largest model that the demo trains: three times the size of SmolLM2-135M, and about three times its time."""


@dataclass(frozen=True)
class SumsSize(DemoSize):
    """The size of a demo on sums, and its model as `model.path` names it."""

    model: str


def full_size(model: str) -> SumsSize:
    return SumsSize(steps=32, prompts=8, eval_problems=160, eval_n=8, probe_problems=32, probe_n=16, model=model)


def fast_size(model: str) -> SumsSize:
    return SumsSize(steps=6, prompts=8, eval_problems=48, eval_n=4, probe_problems=8, probe_n=16, model=model)


def run_sums(folder: DemoFolder, size: SumsSize, screen: Screen) -> Demo:
    """Run the demo and return its results: the evaluations of the base model and of the trained one, and the report."""
    start = time.monotonic()
    require_small(size.model)
    folder.claim(size)
    write_sums(folder)
    experiment = Experiment("egpo demo", sums_config(folder, size))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* responses have neither", EgpoWarning)  # the task asks for no thinking
        run_stages(experiment, _stages("probe"), screen)
        probed = time.monotonic()
        run_stages(_base_only(experiment), _stages("eval"), screen)
        forecast = TimeForecast(screen, time.monotonic() - probed)
        run_stages(experiment, _stages("train", "eval"), replace(screen, on_step=forecast.step, shows_steps=True))
    report = write_report([experiment.run.path], folder.report)
    outcome = forecast_and_outcome(experiment.run.evals / PROBE, [experiment.config])
    evaluations = stored_evaluations(experiment, {experiment.name: experiment}, size.model)
    return Demo(evaluations, outcome, report, time.monotonic() - start)


def _stages(*names: str) -> Selection:
    return Selection.of(only=names)


def _base_only(experiment: Experiment) -> Experiment:
    """Return the experiment whose stage `eval` evaluates the base model alone; its result is not computed again."""
    chosen = experiment.config.eval.model_copy(update={"models": ("base",)})
    return replace(experiment, config=experiment.config.model_copy(update={"eval": chosen}))


def sums_config(folder: DemoFolder, size: SumsSize) -> Config:
    """Return the config of the demo's run. Its task reads the file that `write_sums` writes."""
    overrides = {
        "runs": str(folder.path),
        "steps": size.steps,
        "rollout.prompts": size.prompts,
        "model.path": size.model,
        "task.settings.source": str(_rows_file(folder)),
        "probe.problems": size.probe_problems,
        "probe.n": size.probe_n,
        "eval.problems": size.eval_problems,
        "eval.n": size.eval_n,
    }
    return load_config(RECIPE, [f"{key}={json.dumps(value)}" for key, value in overrides.items()])


def require_small(model: str) -> None:
    """Fetch and convert the model if it is not on this machine. Raise InputError if it is too large for the demo."""
    weights = read_shape(model).weights
    if weights > MOST_WEIGHTS:
        what = f"the model has {weights / 1e6:,.0f} million weights; the demo takes {MOST_WEIGHTS / 1e6:.0f} at most"
        fix = "use --model smollm2-135m, or train it with a recipe: egpo new mine"
        raise InputError(what, where=f"model {model}", fix=fix)


def write_sums(folder: DemoFolder) -> None:
    """Write every sum as a row of `data/sums.jsonl`, unless this has been done."""
    path = _rows_file(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in sum_rows())
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_atomically(path, text)


def sum_rows() -> Iterator[dict[str, object]]:
    """Yield every pair of numbers once, in one random order of the two, as chat messages and the right answer.

    12 + 7 and 7 + 12 are never both there: otherwise one could be a training problem, and the other held out.
    """
    rng = random.Random("sums")
    shown = [message for pair in EXAMPLES for message in _turns(*pair)]
    for a in range(1, LARGEST + 1):
        for b in range(a, LARGEST + 1):
            first, second = rng.sample((a, b), 2)
            if (a, b) not in {(min(pair), max(pair)) for pair in EXAMPLES}:
                yield {"messages": [*shown, _turns(first, second)[0]], "sum": str(a + b)}


def _turns(a: int, b: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{a} + {b}"}, {"role": "assistant", "content": f"#### {a + b}"}]


def _rows_file(folder: DemoFolder) -> Path:
    return folder.data / "sums.jsonl"


class TimeForecast:
    """Says after the first training step of this call how long the rest takes.

    `evaluation_s`: how long the evaluation of the base model took in this call.
    """

    def __init__(self, screen: Screen, evaluation_s: float) -> None:
        self._screen, self._evaluation_s, self._said = screen, evaluation_s, False

    def step(self, report: StepReport) -> None:
        if self._said or STEP_S not in report.timings:
            return
        self._said = True
        step_s, left = report.timings[STEP_S], report.num_steps - report.step
        left_s = format_duration(left * step_s + self._evaluation_s)
        parts = f"{left} more steps of {step_s:.1f} s, then an evaluation as before"
        self._screen.say(f"Forecast from the first step: about {left_s} left ({parts}).")
