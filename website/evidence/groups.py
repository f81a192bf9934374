"""Reads docs/evidence: the runs of each task, their accuracies, and every contrast of the page as one family of tests.

All statistics are those of `egpo compare`, whose functions are called here: fairness is checked first, and differences
are tested over seeds and problems. Holm's correction is applied once, to all contrasts of the page together.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from egpo.comparisons.compared_models import evaluations_of, read_compared_models
from egpo.comparisons.comparison import difference_test
from egpo.comparisons.conditions import Condition, conditions_of
from egpo.comparisons.fairness import inequalities, notes_on, refuse
from egpo.comparisons.outcome import DifferenceTest
from egpo.comparisons.result import Contrast, Pair, contrasts_of
from egpo.comparisons.values import ACCURACY, ComparedMetric, RunFigures, figures_of_condition
from egpo.errors import InputError
from egpo.evals.intervals import SHARES, Estimate, mean_with_interval
from egpo.evals.responses import StoredEvaluation
from egpo.runs.stored import StoredRun, read_json_object
from website.evidence.sittings import Sittings, check_sittings, read_sittings
from website.evidence.stripping import BEFORE_FILE, BEFORE_TRAINING, task_of
from website.figures import ESTIMATORS

METRIC = ComparedMetric.named(ACCURACY)
BASE, COLD_START = "base model", "cold start"


@dataclass(frozen=True)
class Group:
    """The runs of one task, sorted by estimator and seed, and the evaluations of the models before training."""

    task: str
    runs: Sequence[StoredRun]
    before: Sequence[StoredEvaluation]

    @cached_property
    def by_estimator(self) -> Mapping[str, Sequence[StoredRun]]:
        found: dict[str, list[StoredRun]] = {}
        for run in self.runs:
            found.setdefault(estimator_of(run), []).append(run)
        return found

    @property
    def seeds(self) -> list[int]:
        return sorted({_seed(run) for run in self.runs})


@dataclass(frozen=True)
class Row:
    """The accuracy of one model. A model before training has an interval over problems, an estimator several seeds."""

    label: str
    accuracy: float
    by_seed: Sequence[float] = ()
    estimate: Estimate | None = None


@dataclass(frozen=True)
class Exam:
    """One evaluation of all models of a group: greedy, or sampled several times."""

    task: str
    name: str
    is_greedy: bool
    num_samples: int
    num_problems: int
    rows: Sequence[Row]
    notes: Sequence[str]

    @property
    def kind(self) -> str:
        return "greedy" if self.is_greedy else "sampled"


@dataclass(frozen=True)
class Tested:
    """One contrast of the page. `is_of_estimators`: between two estimators; otherwise it is a gain of training."""

    exam: Exam
    contrast: Contrast
    is_of_estimators: bool


@dataclass(frozen=True)
class Evidence:
    """Everything that the page is made from."""

    groups: Sequence[Group]
    exams: Sequence[Exam]
    tested: Sequence[Tested]
    sittings: Sittings

    @property
    def runs(self) -> list[StoredRun]:
        return [run for group in self.groups for run in group.runs]

    def of(self, exam: Exam, *, estimators: bool) -> list[Tested]:
        return [one for one in self.tested if one.exam is exam and one.is_of_estimators == estimators]


def has_evidence(folder: Path) -> bool:
    return any(folder.glob("*/*/metrics.jsonl.gz"))


def read_evidence(folder: Path) -> Evidence:
    """Read and check all runs. Raise InputError if they cannot be compared fairly or do not agree with the sittings."""
    groups = read_groups(folder)
    sittings = check_sittings(folder, {f"{group.task}/{run.name}": run for group in groups for run in group.runs})
    exams: list[Exam] = []
    pairs: list[Pair] = []
    tests: list[DifferenceTest] = []
    places: list[tuple[Exam, bool]] = []
    for group in groups:
        for name in _exam_names(group):
            exam, conditions, figures = _examined(group, name)
            exams.append(exam)
            for base, other in _pairs(conditions):
                labels = _label(conditions[base]), _label(conditions[other])
                pairs.append(Pair(METRIC.name, *labels))
                tests.append(difference_test(figures[base], figures[other], METRIC, seed=0))
                places.append((exam, conditions[base].runs[0].is_trained))
    contrasts = contrasts_of(pairs, tests)
    tested = [Tested(exam, contrast, both) for (exam, both), contrast in zip(places, contrasts, strict=True)]
    return Evidence(groups, exams, tested, sittings)


def read_groups(folder: Path) -> list[Group]:
    """Return the groups in the order of their names."""
    found: dict[str, list[StoredRun]] = {}
    for config in sorted(folder.glob("*/*/config.yaml")):
        run = StoredRun.at(config.parent)
        if (config.parent / BEFORE_FILE).is_file():
            found.setdefault(config.parent.parent.name, []).append(run)
    return [_group(folder, task, runs) for task, runs in found.items()]


def estimator_of(run: StoredRun) -> str:
    return run.setting("algorithm", "estimator")


def recomputed(evaluation: StoredEvaluation) -> Estimate:
    """Return the accuracy of an evaluation from its outcomes, with its interval over problems.

    Raise InputError if the file's own accuracy is another one.
    """
    values = METRIC.by_problem(evaluation.samples).values()
    found = mean_with_interval(values, seed=int(evaluation.section("sampling").get("seed", 0)), bounds=SHARES)
    said = evaluation.section("accuracy")
    if found is None or abs(found.value - said.get("value", -1)) > 1e-9:
        what = f"the outcomes give another accuracy than the file says ({said.get('value')})"
        raise InputError(what, where=str(evaluation.path), fix="restore both files")
    return found


def _group(folder: Path, task: str, runs: Sequence[StoredRun]) -> Group:
    order = {name: place for place, name in enumerate(ESTIMATORS)}
    ordered = sorted(runs, key=lambda run: (order.get(estimator_of(run), len(order)), estimator_of(run), _seed(run)))
    files = sorted((folder / BEFORE_TRAINING / task).glob("*.json"))
    before = [StoredEvaluation(path, read_json_object(path)) for path in files]
    group = Group(task, ordered, sorted(before, key=lambda one: one.label.startswith(COLD_START)))
    _check(folder, group)
    return group


def _check(folder: Path, group: Group) -> None:
    """Raise InputError if a run is of another task, if estimators have different seeds or started from other weights.

    Data, settings and evaluations are checked by the functions of `egpo compare`.
    """
    where = str(folder / group.task)
    if others := [run.name for run in group.runs if task_of(run) != group.task]:
        raise InputError(f"the run {others[0]} is of another task", where=where, fix="add it to its own task")
    seeds = {name: [_seed(run) for run in runs] for name, runs in group.by_estimator.items()}
    if len({tuple(of_one) for of_one in seeds.values()}) > 1:
        raise InputError(f"the estimators have different seeds: {seeds}", where=where, fix="add the missing runs")
    weights = {_weights(run) for run in group.runs}
    if len(weights) > 1 and not any(weights <= set(same.digests) for same in read_sittings(folder).same_weights):
        raise InputError("the runs started from different weights", where=where, fix="use one cold start for all")


def _weights(run: StoredRun) -> str:
    jobs = read_json_object(run.folder.stages).get("jobs", {})
    return str(jobs.get("train", {}).get("inputs", {}).get("weights"))


def _exam_names(group: Group) -> list[str]:
    """Return the evaluations of the trained models, sampled ones first."""
    found = {one.exam: _is_greedy(one) for run in group.runs for one in evaluations_of(run)}
    return sorted(found, key=lambda name: (found[name], name))


def _examined(group: Group, name: str) -> tuple[Exam, list[Condition], list[list[RunFigures]]]:
    """Return an exam with the accuracies of all models, refusing an unfair comparison as `egpo compare` does."""
    paths = [run.folder.path for run in group.runs]
    sampling = next(one.section("sampling") for one in evaluations_of(group.runs[0]) if one.exam == name)
    before = [one.path for one in group.before if one.section("sampling") == sampling]
    models = read_compared_models([*before, *paths], name)
    conditions = conditions_of(models)
    refuse(inequalities(conditions))
    figures = [figures_of_condition(condition, METRIC) for condition in conditions]
    rows = [_row(condition, found) for condition, found in zip(conditions, figures, strict=True)]
    first = models[-1].evaluations[0]
    exam = Exam(
        task=group.task,
        name=name,
        is_greedy=_is_greedy(first),
        num_samples=int(sampling.get("n", 1)),
        num_problems=int(first.header["num_problems"]),
        rows=rows,
        notes=notes_on(conditions, {METRIC: figures}),
    )
    return exam, conditions, figures


def _row(condition: Condition, figures: Sequence[RunFigures]) -> Row:
    estimates = [recomputed(evaluation) for model in condition.runs for evaluation in model.evaluations]
    means = [run.mean for run in figures]
    if not condition.runs[0].is_trained:
        return Row(_label(condition), means[0], (), estimates[0])
    return Row(_label(condition), sum(means) / len(means), means)


def _pairs(conditions: Sequence[Condition]) -> Iterator[tuple[int, int]]:
    """Yield the contrasts of an exam: cold start - base, each estimator - what it started from, pairs of estimators."""
    plain = [place for place, one in enumerate(conditions) if not one.runs[0].is_trained]
    trained = [place for place, one in enumerate(conditions) if one.runs[0].is_trained]
    yield from pairwise(plain)
    yield from ((plain[-1], place) for place in trained if plain)
    yield from ((base, other) for base in trained for other in trained if base < other)


def _label(condition: Condition) -> str:
    if condition.runs[0].is_trained:
        return estimator_of(condition.runs[0].run) if condition.runs[0].run else condition.label
    return COLD_START if condition.label.startswith(COLD_START) else BASE


def _is_greedy(evaluation: StoredEvaluation) -> bool:
    return evaluation.section("sampling").get("temperature") == 0


def _seed(run: StoredRun) -> int:
    return run.provenance.seed if run.provenance else -1
