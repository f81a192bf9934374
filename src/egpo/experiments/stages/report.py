"""The run as one page."""

from functools import partial

from egpo.experiments.experiment import Experiment
from egpo.experiments.job import Job
from egpo.experiments.prints import folder_digest, print_of
from egpo.experiments.screen import Screen
from egpo.reports import write_report


def jobs(experiment: Experiment, screen: Screen) -> list[Job]:
    run = experiment.run
    inputs = {
        "config": str(print_of(run.config)),
        "metrics": str(print_of(run.metrics)),
        "health": str(print_of(run.health)),
        "evaluations": folder_digest(run.evals),
    }
    return [Job("report", inputs, lambda: [run.report], partial(_reported, experiment))]


def _reported(experiment: Experiment) -> str:
    return str(write_report([experiment.run.path], experiment.run.report))
