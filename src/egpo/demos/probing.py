"""The probe of a demo: is there something to learn, and was the forecast right?"""

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from egpo.config import Config
from egpo.demos.plan import DemoFolder, Plan
from egpo.evals.evaluate import Exam
from egpo.evals.intervals import Estimate, default_ks
from egpo.evals.responses import Sampling
from egpo.experiments.screen import Screen
from egpo.files import write_atomically
from egpo.probes.forecast import Forecast
from egpo.probes.probe import draw_paper, probe
from egpo.probes.store import write_probe
from egpo.probes.subject import find_subject
from egpo.reports.evaluations import read_object
from egpo.reports.probe import PROBE
from egpo.runs.folder import RunFolder
from egpo.runs.live import warnings_printed_by
from egpo.runs.metric_table import NO_SIGNAL
from egpo.runs.metrics import read_metrics

FIRST_STEPS = 10
"""Training steps that a forecast is held against: later the model is another."""


def probe_base(config: Config, folder: DemoFolder, plan: Plan, screen: Screen) -> str:
    """Probes the training problems, unless that is done, and says what was found."""
    if not (folder.probe / PROBE).is_file():
        subject = find_subject(config, out=folder.probe)
        paper = draw_paper(_exam(config, plan))
        with screen.watched("probe") as view, warnings_printed_by(view.say):
            write_probe(subject.folder, probe(subject.load(), paper, view.watch), subject.origin)
    return _described(read_object(folder.probe / PROBE))


def show_probe_in(run: RunFolder, folder: DemoFolder) -> None:
    """The report reads a run's probe in its `evals`."""
    write_atomically(run.evals / PROBE, (folder.probe / PROBE).read_bytes())


def forecast_and_outcome(folder: DemoFolder, configs: Iterable[Config]) -> str:
    """The share of informative groups: as forecast for so many groups, and as seen in the first steps of each run."""
    found = list(configs)
    rollout, steps = found[0].rollout, min(FIRST_STEPS, found[0].steps)
    num_groups = steps * rollout.prompts
    forecast = _forecast(folder, rollout.n)
    low, high = forecast.seen_in(num_groups)
    shares = {config.name: _informative(folder.run_of(config.name)) for config in found}
    seen = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    held = "as forecast" if all(low <= share <= high for share in shares.values()) else "not as forecast"
    return (
        f"Groups of {rollout.n} whose rewards differ: forecast {forecast.informative.value:.0%}, "
        f"and among {num_groups} groups {low:.0%} to {high:.0%}; in the first {steps} steps {seen}: {held}."
    )


def _forecast(folder: DemoFolder, size: int) -> Forecast:
    stored = next(one for one in read_object(folder.probe / PROBE)["forecasts"] if one["group_size"] == size)
    return Forecast(size, Estimate(**stored["informative"]), stored["extrapolated"])


def _exam(config: Config, plan: Plan) -> Exam:
    rollout = config.rollout
    sampling = Sampling(plan.probe_n, rollout.temperature, rollout.top_p, rollout.max_response_tokens, config.seed)
    return Exam(config.task.name, config.task.settings, "train", plan.probe_problems, sampling, default_ks(sampling.n))


def _described(found: Mapping[str, Any]) -> str:
    accuracy, variance = found["evaluation"]["accuracy"]["value"], found["reward_variance"]["value"]
    faults = [one for one in found["findings"] if one["status"] == "bad"]
    verdict = "; ".join(f"{one['figure']}: {one['advice']}" for one in faults) or "there is"
    return f"    {verdict}: accuracy {accuracy:.0%}, variance of the reward within a problem {variance:.2f}"


def _informative(run: RunFolder) -> float:
    """The mean over the first steps."""
    shares = [1 - line[NO_SIGNAL] for line in read_metrics(run.metrics) if NO_SIGNAL in line]
    return fmean(shares[:FIRST_STEPS])
