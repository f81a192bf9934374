"""What `egpo eval bfcl` prints, at 80 columns."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape

from egpo.cli.eval_tables import print_table, reason_rows
from egpo.evals.bfcl.evaluation import VERSION, CategoryFigures, figures_by_category
from egpo.evals.bfcl.parity import Mismatch
from egpo.evals.bfcl.run import Outcome
from egpo.evals.compare import Comparison


def print_bfcl(outcome: Outcome) -> None:
    console, evaluation = Console(highlight=False), outcome.evaluation
    passes = evaluation.exam.sampling.n
    title = f"{evaluation.label}: {VERSION}, {passes} {'pass' if passes == 1 else 'passes'}"
    rows = [_row(figures) for figures in figures_by_category(evaluation.samples)]
    print_table(console, title, ("category", "cases", "accuracy", "95 % interval", "passes", "spread"), rows, 1)
    print_table(console, "reasons", ("reason", "meaning", "answers", "share"), reason_rows(evaluation), 2)
    if evaluation.figures.num_failed:
        console.print(f"{evaluation.figures.num_failed} generations failed and are left out")
    _print_parity(console, outcome.mismatches)
    console.print(f"written to {escape(str(outcome.path))}; BFCL's own files in {escape(str(outcome.raw))}\n")


def as_json_value(outcomes: Sequence[Outcome], comparisons: Sequence[Comparison]) -> dict[str, Any]:
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


def _print_parity(console: Console, found: Sequence[Mismatch] | None) -> None:
    if found is None:
        console.print("no training prompt is known: whether the model was trained on such prompts, nobody checked")
        return
    if not found:
        console.print("the prompt is that of training, but for the question")
        return
    console.print("the prompt differs from that of training: part of what is measured is that difference")
    for one in found:
        console.print(
            f"  {one.part}: training {escape(repr(one.training))}, BFCL {escape(repr(one.bfcl))}", soft_wrap=True
        )
