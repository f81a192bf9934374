"""The tables that `egpo eval` and `egpo eval bfcl` print, for terminals of 80 columns."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from egpo.cli.tables import cell, excerpt, safe_table
from egpo.evals.bfcl.evaluate_bfcl import BfclOutcome, PromptMismatch
from egpo.evals.bfcl.verdicts import VERSION, CategoryFigures, figures_by_category
from egpo.evals.evaluate import Evaluation
from egpo.evals.figures import Figures
from egpo.evals.intervals import Estimate
from egpo.evals.paired import SCORE, Comparison, PairedDifference
from egpo.evals.server_requests import FAILURES
from egpo.rewards.batch import meaning_of

_NUM_EXAMPLES = 3
_EXAMPLE_LENGTH = 400


def print_evaluation(evaluation: Evaluation, path: Path) -> None:
    """Print the figures of an evaluation, the number of responses for each reason of a verdict, and the file's path.

    If no response contains an answer, print examples of responses instead of figures, which would all be zero.
    """
    console, figures, exam = Console(highlight=False, emoji=False), evaluation.figures, evaluation.exam
    title = f"{evaluation.label}: {exam.task}, {figures.num_problems:,} {exam.split} problems, {sampled(evaluation)}"
    if figures.readable_frac == 0:
        print_unreadable(console, evaluation, title)
    else:
        print_table(console, title, ("figure", "value", "95 % interval"), figure_rows(figures), 1)
    print_table(console, "reasons", ("reason", "meaning", "responses", "share"), reason_rows(evaluation), 2)
    for note in notes_on(evaluation):
        console.print(escape(note))
    console.print(f"written to {escape(str(path))}\n", soft_wrap=True)


def print_comparison(comparison: Comparison) -> None:
    """Print the comparison of two models, one row per figure: both values, difference, interval and verdict."""
    console = Console(highlight=False, emoji=False)
    title = f"{comparison.base} -> {comparison.other}: {comparison.num_problems:,} problems, paired"
    columns = ("figure", "base -> other (delta)", "95 % interval", "verdict")
    print_table(console, title, columns, [_difference_row(*row) for row in comparison.rows.items()], 1)
    tested = [f"{name} p = {row.p_value:.2g}" for name, row in comparison.rows.items() if row.p_value is not None]
    if tested:
        console.print(f"McNemar's exact test: {', '.join(tested)}")
    console.print(
        f"The verdict is about {cell(comparison.other)}. Accuracy and pass@k are in percent, their differences in "
        "percentage points.\n"
    )


def print_table(
    console: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], num_text: int
) -> None:
    # Printed separately, because rich would wrap a table's title to the table's width.
    console.print(cell(title))
    console.print(safe_table("", columns, rows, num_text))


def sampled(evaluation: Evaluation) -> str:
    sampling = evaluation.exam.sampling
    return "greedy" if sampling.temperature == 0 else f"n {sampling.n}, temperature {sampling.temperature:g}"


def figure_rows(figures: Figures) -> Iterator[Sequence[str]]:
    yield "accuracy", *percent(figures.accuracy)
    yield from ((f"pass@{k}", *percent(estimate)) for k, estimate in figures.pass_at_k.items() if k > 1)
    yield "mean score", *number(figures.mean_score, 3)
    yield from ((f"entropy, {name} (nats)", *number(entropy, 3)) for name, entropy in figures.entropy.items())
    if figures.length is not None:
        yield "length (tokens)", *number(figures.length, 1)
    if figures.truncated_frac is not None:
        yield "cut off at the length limit", f"{figures.truncated_frac:.1%}", ""
    yield from ((f"{name} per episode", *number(found, 2)) for name, found in _per_episode(figures) if found)


def _per_episode(figures: Figures) -> list[tuple[str, Estimate | None]]:
    return [("turns", figures.turns), ("calls", figures.calls)]


def percent(estimate: Estimate | None) -> tuple[str, str]:
    if estimate is None:
        return "unknown", ""
    ends = "" if estimate.low is None or estimate.high is None else f"{estimate.low:.1%} to {estimate.high:.1%}"
    return f"{estimate.value:.1%}", ends


def number(estimate: Estimate | None, digits: int) -> tuple[str, str]:
    if estimate is None:
        return "unknown", ""
    ends = (estimate.low, estimate.high)
    shown = "" if None in ends else f"{estimate.low:.{digits}f} to {estimate.high:.{digits}f}"
    return f"{estimate.value:.{digits}f}", shown


def reason_rows(evaluation: Evaluation) -> Iterator[Sequence[str]]:
    figures = evaluation.figures
    sources = {sample.data_source for sample in evaluation.samples}
    for reason, count in (*figures.reasons.items(), *figures.failures.items()):
        meaning = FAILURES.get(reason) or meaning_of(reason, sources)
        yield reason, meaning, f"{count:,}", f"{count / figures.num_responses:.1%}"


def notes_on(evaluation: Evaluation) -> Iterator[str]:
    figures = evaluation.figures
    if figures.endings:
        yield "endings: " + ", ".join(f"{name} {count:,}" for name, count in figures.endings.items())
    if figures.faults:
        yield "the model's faults: " + ", ".join(f"{name} {count:,}" for name, count in figures.faults.items())
    if figures.num_failed:
        yield f"{figures.num_failed:,} of {figures.num_responses:,} responses failed and are left out of all figures."
    if evaluation.num_left_out:
        yield f"{evaluation.num_left_out:,} problems were left out: their prompts are too long for the model."


def print_unreadable(console: Console, evaluation: Evaluation, title: str) -> None:
    figures = evaluation.figures
    console.print(f"{cell(title)}\n[bold]None of {figures.num_responses:,} responses contains an answer.[/]")
    first_of_each = {sample.problem: sample for sample in reversed(evaluation.samples) if not sample.failed}
    for sample in list(reversed(first_of_each.values()))[:_NUM_EXAMPLES]:
        shown = cell(excerpt(sample.output, _EXAMPLE_LENGTH)) or "(nothing)"
        console.print(f"  {cell(sample.reason)}, to {cell(excerpt(sample.problem, 40))}:\n    {shown}")
    console.print(_advice(figures))


def _advice(figures: Figures) -> str:
    if figures.truncated_frac and figures.truncated_frac > 0.5:
        return "Most responses were cut off at the length limit: increase --max-tokens."
    return (
        "Check that the model is a chat model with a chat template. If it does not know the answer format, teach it by "
        "supervised fine-tuning (`egpo sft`)."
    )


def _difference_row(name: str, row: PairedDifference) -> Sequence[str]:
    delta = row.delta
    scale, digits = (1, 3) if name == SCORE else (100, 1)
    base, other, change = (f"{value * scale:.{digits}f}" for value in (row.base, row.other, delta.value))
    sign = "" if change.startswith("-") else "+"
    interval = ""
    if delta.low is not None and delta.high is not None:
        interval = f"{delta.low * scale:+.{digits}f} to {delta.high * scale:+.{digits}f}"
    return name, f"{base} -> {other} ({sign}{change})", interval, row.verdict


def print_bfcl(outcome: BfclOutcome) -> None:
    console, evaluation = Console(highlight=False), outcome.evaluation
    passes = evaluation.exam.sampling.n
    title = f"{evaluation.label}: {VERSION}, {passes} {'pass' if passes == 1 else 'passes'}"
    rows = [_row(figures) for figures in figures_by_category(evaluation.samples)]
    print_table(console, title, ("category", "cases", "accuracy", "95 % interval", "passes", "spread"), rows, 1)
    print_table(console, "reasons", ("reason", "meaning", "answers", "share"), reason_rows(evaluation), 2)
    if evaluation.figures.num_failed:
        console.print(f"{evaluation.figures.num_failed} generations failed and are left out of the accuracy.")
    _print_parity(console, outcome.mismatches)
    console.print(f"written to {escape(str(outcome.path))}; BFCL's own files in {escape(str(outcome.raw))}\n")


def as_json_value(outcomes: Sequence[BfclOutcome], comparisons: Sequence[Comparison]) -> dict[str, Any]:
    told = []
    for outcome in outcomes:
        found = None if outcome.mismatches is None else [asdict(one) for one in outcome.mismatches]
        categories = [
            asdict(part) | {"spread": part.spread} for part in figures_by_category(outcome.evaluation.samples)
        ]
        label = outcome.evaluation.label
        told.append({"label": label, "file": str(outcome.path), "categories": categories, "prompt_mismatches": found})
    return {"evaluations": told, "comparisons": [asdict(comparison) for comparison in comparisons]}


def _row(figures: CategoryFigures) -> tuple[str, ...]:
    accuracy = figures.accuracy
    interval = "" if accuracy.low is None else f"{accuracy.low:.1%} to {accuracy.high:.1%}"
    passes = " ".join(f"{100 * share:.1f}" for share in figures.by_pass)
    spread = "" if figures.spread is None else f"{100 * figures.spread:.1f}"
    return (figures.category, f"{figures.num_cases:,}", f"{accuracy.value:.1%}", interval, passes, spread)


def _print_parity(console: Console, found: Sequence[PromptMismatch] | None) -> None:
    if found is None:
        console.print("BFCL's prompt could not be compared with the training prompt, which is unknown.")
        return
    if not found:
        console.print("BFCL's prompt has the same form as the training prompt.")
        return
    console.print("BFCL's prompt differs from the training prompt, which affects the result:")
    for one in found:
        console.print(
            f"  {one.part}: training {escape(repr(one.training))}, BFCL {escape(repr(one.bfcl))}", soft_wrap=True
        )
