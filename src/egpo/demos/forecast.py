"""The probe's forecast of informative groups (groups whose rewards differ), compared with the first training steps."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from egpo.config import Config
from egpo.evals.intervals import Estimate
from egpo.probes.forecast import Forecast
from egpo.runs.folder import RunFolder
from egpo.runs.metric_table import NO_SIGNAL
from egpo.runs.metrics import read_metrics
from egpo.runs.stored import read_json_object

FIRST_STEPS = 10
"""Number of training steps compared with the forecast; later, the model differs too much from the probed one."""


def forecast_and_outcome(probe: Path, configs: Sequence[Config]) -> str:
    """Return a sentence on the fraction of groups whose rewards differ: forecast, and measured in the first steps."""
    rollout, steps = configs[0].rollout, min(FIRST_STEPS, configs[0].steps)
    num_groups = steps * rollout.prompts
    forecast = _forecast(probe, rollout.n)
    low, high = forecast.seen_in(num_groups)
    fractions = {config.name: _informative_frac(config) for config in configs}
    seen = ", ".join(f"{name} {fraction:.0%}" for name, fraction in fractions.items())
    inside = all(low <= fraction <= high for fraction in fractions.values())
    return (
        f"Groups of {rollout.n} responses whose rewards differ: forecast {forecast.informative.value:.0%} "
        f"({low:.0%} to {high:.0%} among {num_groups} groups); measured in the first {steps} "
        f"step{'s' if steps > 1 else ''}: {seen} ({'within' if inside else 'outside'} the forecast)."
    )


def _forecast(probe: Path, size: int) -> Forecast:
    stored = next(one for one in read_json_object(probe)["forecasts"] if one["group_size"] == size)
    return Forecast(size, Estimate(**stored["informative"]), stored["extrapolated"])


def _informative_frac(config: Config) -> float:
    """Return the mean fraction of informative groups over the first steps of a run."""
    metrics = RunFolder(Path(config.runs) / config.name).metrics
    fractions = [1 - line[NO_SIGNAL] for line in read_metrics(metrics) if NO_SIGNAL in line]
    return fmean(fractions[:FIRST_STEPS])
