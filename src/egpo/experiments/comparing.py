"""How the runs of one call compare, once all of them are evaluated."""

from collections.abc import Sequence
from pathlib import Path

from egpo.comparisons.comparison import Wanted, compare_runs
from egpo.errors import InputError
from egpo.evals.store import file_name
from egpo.experiments.exams import exams_of
from egpo.experiments.experiment import Experiment
from egpo.experiments.screen import Screen
from egpo.reports import write_report


def compare_experiments(experiments: Sequence[Experiment], screen: Screen) -> None:
    """A verdict in words for each exam, and one page of all runs. Runs that cannot be compared fairly are not: the
    reason is said, and is no failure of theirs."""
    runs = [experiment.run.path for experiment in experiments]
    for exam in exams_of(experiments[0].training):
        name = file_name(exam.task.rpartition(":")[2], exam.sampling.described)
        for line in _verdicts(runs, name):
            screen.say(f"{name}: {line}")
    screen.say(f"all of them: {write_report(runs)}")


def _verdicts(runs: Sequence[Path], exam: str) -> list[str]:
    try:
        found = compare_runs(runs, Wanted(exam=exam))
    except InputError as error:
        return ["not compared", *(f"  {fault}" for fault in error.faults)]
    return [*(contrast.verdict for contrast in found.contrasts), *(f"note: {note}" for note in found.notes)]
