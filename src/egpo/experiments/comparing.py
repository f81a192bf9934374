"""How the runs of one call compare, once all of them are evaluated."""

from collections.abc import Sequence
from pathlib import Path

from egpo.comparisons.comparison import Wanted, compare_runs
from egpo.errors import InputError
from egpo.evals.targets import exam_name
from egpo.experiments.exams import exams_of
from egpo.experiments.experiment import Experiment
from egpo.experiments.screen import Screen
from egpo.experiments.stages.bfcl import bfcl_exam
from egpo.reports import write_report


def compare_experiments(experiments: Sequence[Experiment], screen: Screen) -> None:
    """A verdict in words for each exam, and one page of all runs. Runs that cannot be compared fairly are not: the
    reason is said, and is no failure of theirs."""
    runs = [experiment.run.path for experiment in experiments]
    for name in _exam_names(experiments[0]):
        for line in _verdicts(runs, name):
            screen.say(f"{name}: {line}")
    screen.say(f"all of them: {write_report(runs)}")


def _exam_names(experiment: Experiment) -> list[str]:
    """What the evaluations of a trained model are called, without its step."""
    chosen = experiment.training.eval
    names = [exam_name(exam) for exam in exams_of(experiment.training)]
    return [*names, bfcl_exam(experiment)] if chosen.bfcl and "trained" in chosen.models else names


def _verdicts(runs: Sequence[Path], exam: str) -> list[str]:
    try:
        found = compare_runs(runs, Wanted(exam=exam))
    except InputError as error:
        return ["not compared", *(f"  {fault}" for fault in error.faults)]
    return [*(contrast.verdict for contrast in found.contrasts), *(f"note: {note}" for note in found.notes)]
