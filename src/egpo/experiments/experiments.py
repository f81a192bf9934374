"""Several recipes in one call: they share their data, and end in a comparison."""

from collections.abc import Sequence

from egpo.experiments.comparing import compare_experiments
from egpo.experiments.experiment import Experiment
from egpo.experiments.pipeline import run_stages
from egpo.experiments.prepared import require_source
from egpo.experiments.screen import Screen
from egpo.experiments.selection import Selection


def run_experiments(experiments: Sequence[Experiment], selection: Selection, screen: Screen) -> None:
    """One after the other. A failure ends the call: what was done is kept, and the same call goes on there."""
    if "prepare" in selection.stages:
        for experiment in experiments:
            require_source(experiment.config)
    for experiment in experiments:
        screen.say(f"{experiment.name}: {experiment.recipe} -> {experiment.run.path}")
        run_stages(experiment, selection, screen)
    if len(experiments) > 1 and "report" in selection.stages:
        compare_experiments(experiments, screen)
