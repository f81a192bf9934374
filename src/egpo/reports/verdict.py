"""The verdict that opens a report: what training changed, by how much, and with what certainty.

A run is compared with its base model on each exam that both took, problem by problem, by the test of `egpo compare`.
All p-values of a page are corrected together by Holm's method. Where no such pair of evaluations was stored, the
verdict states what the training metrics show, and that they have no interval.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from egpo.errors import InputError
from egpo.reports.curves import ReportedRun
from egpo.reports.evaluations import ExamKey, ShownEvaluation
from egpo.reports.overview import training_changes

if TYPE_CHECKING:
    from egpo.comparisons.outcome import DifferenceTest
    from egpo.comparisons.result import Contrast
    from egpo.evals.responses import StoredEvaluation

Finding = Literal["better", "worse", "not distinguishable", "not measured"]


@dataclass(frozen=True)
class RunVerdict:
    """The verdict on one run on one exam: `change` states what changed, `certainty` how sure that is.

    `delta` is the difference of the accuracies, in [-1, 1]; None if it was not tested.
    """

    run: ReportedRun
    finding: Finding
    change: str
    certainty: str
    delta: float | None = None


@dataclass(frozen=True)
class ExamVerdict:
    """One sentence on all runs that took an exam, then an entry for each. Runs without an exam form a group, too."""

    summary: str
    entries: Sequence[RunVerdict]


@dataclass(frozen=True)
class EvaluatedPair:
    """The evaluations of a run's latest checkpoint and of its base model on one exam; several are repetitions."""

    run: ReportedRun
    exam: ExamKey
    base: Sequence[ShownEvaluation]
    trained: Sequence[ShownEvaluation]


def verdicts_of(runs: Sequence[ReportedRun], evaluations: Sequence[ShownEvaluation]) -> list[ExamVerdict]:
    """Return a verdict for each exam on which runs and their base models were evaluated, and one on the other runs,
    from their training metrics."""
    pairs = [pair for run in runs for pair in evaluated_pairs(run, evaluations)]
    by_exam: dict[ExamKey, list[RunVerdict]] = {}
    for pair, entry in zip(pairs, _measured(pairs), strict=True):
        by_exam.setdefault(pair.exam, []).append(entry)
    found = [ExamVerdict(_summary(exam.title, entries), entries) for exam, entries in by_exam.items()]
    known = {pair.run.place for pair in pairs}
    rest = [_from_training(run, evaluations) for run in runs if run.place not in known]
    return [*found, ExamVerdict(_NOT_MEASURED, rest)] if rest else found


def evaluated_pairs(run: ReportedRun, evaluations: Sequence[ShownEvaluation]) -> list[EvaluatedPair]:
    """Return a pair for each exam that both the run's latest checkpoint and its base model took."""
    own = [evaluation for evaluation in evaluations if evaluation.place == run.place]
    last = max((evaluation.step or 0 for evaluation in own), default=0)
    exams = dict.fromkeys(evaluation.exam for evaluation in own if evaluation.step == last)
    found = []
    for exam in exams:
        trained = [evaluation for evaluation in own if evaluation.step == last and evaluation.exam == exam]
        others = [one for one in evaluations if one.place is None and one.exam == exam]
        if base := _base_of(run, [one for one in others if one.sampling == trained[0].sampling]):
            found.append(EvaluatedPair(run, exam, base, trained))
    return found


def _base_of(run: ReportedRun, others: Sequence[ShownEvaluation]) -> list[ShownEvaluation]:
    """Return the evaluations of the model from which the run started; the only other model if none has its path."""
    path = run.stored.setting("model", "path")
    named = [evaluation for evaluation in others if path and evaluation.model == path]
    labels = {evaluation.label for evaluation in others}
    return named or (list(others) if len(labels) == 1 else [])


def _measured(pairs: Sequence[EvaluatedPair]) -> list[RunVerdict]:
    """Test every pair whose responses are stored, with Holm's correction over all of them."""
    if not pairs:
        return []  # and numpy is not imported
    from egpo.comparisons.result import Pair, contrasts_of

    tested = [(pair, test) for pair in pairs if (test := _test(pair)) is not None]
    labels = [Pair("accuracy", pair.base[0].label, pair.run.name) for pair, _ in tested]
    contrasts = contrasts_of(labels, [test for _, test in tested])
    by_pair = {id(pair): contrast for (pair, _), contrast in zip(tested, contrasts, strict=True)}
    return [_entry(pair, by_pair[id(pair)], len(tested)) if id(pair) in by_pair else _unpaired(pair) for pair in pairs]


def _test(pair: EvaluatedPair) -> "DifferenceTest | None":
    """Return the test on the accuracy of each problem; None if responses are missing or too few problems are shared."""
    from egpo.comparisons.compared_models import ComparedModel
    from egpo.comparisons.mcnemar import compare_over_problems
    from egpo.comparisons.values import ComparedMetric, figures_of_run, shared_problems, table_SP

    metric = ComparedMetric("accuracy")
    try:
        models = [ComparedModel("base", _stored(pair.base)), ComparedModel(pair.run.name, _stored(pair.trained))]
        figures = [figures_of_run(model, metric) for model in models]
        base_SP, other_SP = (table_SP([found], shared_problems(figures)) for found in figures)
    except InputError:
        return None
    return compare_over_problems(base_SP[0], other_SP[0], bounds=metric.bounds)


def _stored(evaluations: Sequence[ShownEvaluation]) -> "list[StoredEvaluation]":
    from egpo.evals.responses import StoredEvaluation

    return [StoredEvaluation(evaluation.file.path, evaluation.file.header) for evaluation in evaluations]


def _entry(pair: EvaluatedPair, contrast: "Contrast", num_tests: int) -> RunVerdict:
    from egpo.comparisons.result import amount, p_text, signed

    interval = ""
    if contrast.low is not None and contrast.high is not None:
        interval = f" [{signed(contrast.low, True)},\N{NO-BREAK SPACE}{signed(contrast.high, True)}]"
    change = (
        f"accuracy {100 * contrast.base_mean:.1f} % → {100 * contrast.other_mean:.1f} %, "
        f"{signed(contrast.delta, True)} points{interval} against {contrast.base}"
    )
    corrected = f", Holm's correction for {num_tests} tests" if num_tests > 1 else ""
    certainty = f"p {p_text(contrast.adjusted_p)} ({contrast.method}{corrected}; brackets: 95 % interval)"
    if contrast.finding == "not distinguishable" and contrast.detectable is not None:
        certainty += f"; smallest detectable difference {amount(contrast.detectable, True)} (80 % power)"
    return RunVerdict(pair.run, contrast.finding, change, certainty, contrast.delta)


def _unpaired(pair: EvaluatedPair) -> RunVerdict:
    """Return both accuracies with their own intervals, without a test of the difference."""
    base, trained = pair.base[0], pair.trained[0]
    change = f"accuracy {base.accuracy_text} → {trained.accuracy_text} against {base.label}"
    certainty = "no paired test: the stored responses of an evaluation are missing, or share too few problems"
    return RunVerdict(pair.run, "not measured", change, certainty)


def _from_training(run: ReportedRun, evaluations: Sequence[ShownEvaluation]) -> RunVerdict:
    """Return what the training metrics show, and why there is no verdict from an evaluation."""
    own = [evaluation for evaluation in evaluations if evaluation.place == run.place]
    changes = training_changes(run)
    shown = "; ".join(f"{name} {change.old} → {change.new}" for name, change in changes.items())
    if own:
        figure = f"evaluated: accuracy {own[-1].accuracy_text} on {own[-1].exam.title}"
        change = "; ".join(part for part in (figure, shown and f"in training: {shown}") if part)
        missing = "no evaluation of its base model on the same exam is stored"
    else:
        change = f"in training: {shown}" if shown else "no step is recorded yet"
        missing = "no evaluation was made"
    base = run.stored.setting("model", "path") or "BASE"
    fix = f"`egpo eval {base} {run.stored.folder.path}` measures the change"
    return RunVerdict(run, "not measured", change, f"no interval: {missing}; {fix}")


_NOT_MEASURED = "Not measured by an evaluation: these figures are from training and have no interval."


def _summary(exam: str, entries: Sequence[RunVerdict]) -> str:
    """Return one sentence on the runs that took an exam:
    `countdown (test), 64 problems, greedy: 2 of 3 runs better than the base model (+5.9 to +7.0 points), 1 not
    distinguishable from it.`"""
    groups: dict[Finding, list[RunVerdict]] = {}
    for entry in entries:
        groups.setdefault(entry.finding, []).append(entry)
    if len(entries) == 1:
        (entry,) = entries
        return f"{exam}: {entry.run.name} is {_WORDS[entry.finding]}{_range(entries)}."
    parts = [f"{len(groups[f])} of {len(entries)} runs {_WORDS[f]}{_range(groups[f])}" for f in _WORDS if f in groups]
    return f"{exam}: {', '.join(parts)}."


_WORDS: dict[Finding, str] = {
    "better": "better than the base model",
    "worse": "worse than the base model",
    "not distinguishable": "not distinguishable from the base model",
    "not measured": "not tested against the base model",
}


def _range(entries: Sequence[RunVerdict]) -> str:
    from egpo.comparisons.result import signed

    deltas = sorted(entry.delta for entry in entries if entry.delta is not None)
    if not deltas:
        return ""
    ends = dict.fromkeys(signed(end, True) for end in (deltas[0], deltas[-1]))
    return f" ({' to '.join(ends)} points)"
