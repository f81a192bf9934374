"""`egpo compare`: test whether the evaluations of runs differ, and print the smallest detectable difference."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from egpo.comparisons.result import Comparison, ConditionRow

CONDITION_COLUMNS = ("condition", "metric", "mean", "runs", "evaluations of a run")

RUNS_HELP = (
    "Run folders. For a model without a run, such as the base model: the JSON file of its evaluation (evals/NAME.json)."
)
CASES_HELP = "With --scores: number of problems in each evaluation. Default: unknown."
FACTOR_HELP = "Key or section of the config that may differ between the runs. May be repeated. Default: algorithm."
EVAL_HELP = (
    "Evaluation to compare, if the runs have several: its file name without step and seed, as in countdown-n8-t1; "
    "* matches any characters. Default: the only evaluation that all runs have."
)
METRIC_HELP = (
    "Metric to compare: accuracy, score or pass@K. May be repeated; p-values are then corrected for multiple tests. "
    "Default: accuracy."
)
EFFECT_HELP = "With --scores: print how many evaluations are needed to detect a difference of X percentage points."
CSV_HELP = "Write one line per pair of conditions to this file. Default: not written."
ALLOW_HELP = "Compare even if settings other than --factor differ. The output then lists these settings."
SCORES_HELP = (
    "Compare these scores instead of runs: mean, standard deviation and number of evaluations as "
    "NAME=MEAN±SDxEVALUATIONS, a list as NAME=61.0,62.5, or a YAML or CSV file. May be repeated."
)
OUT_HELP = (
    "Folder for compare.json. `egpo report` shows this file if it is in the folder that holds the runs. "
    "Default: not written."
)


def compare(
    runs: Annotated[list[Path] | None, typer.Argument(metavar="RUN", help=RUNS_HELP, show_default=False)] = None,
    factor: Annotated[list[str] | None, typer.Option("--factor", metavar="KEY", help=FACTOR_HELP)] = None,
    allow: Annotated[bool, typer.Option("--allow", help=ALLOW_HELP)] = False,
    exam: Annotated[str | None, typer.Option("--eval", metavar="NAME", help=EVAL_HELP, show_default=False)] = None,
    metric: Annotated[list[str] | None, typer.Option("--metric", metavar="NAME", help=METRIC_HELP)] = None,
    scores: Annotated[list[str] | None, typer.Option("--scores", metavar="WORD", help=SCORES_HELP)] = None,
    cases: Annotated[int | None, typer.Option(min=2, help=CASES_HELP, show_default=False)] = None,
    effect: Annotated[float, typer.Option(min=0.01, help=EFFECT_HELP)] = 2.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap for the intervals.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the comparison as Markdown.")] = False,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help=CSV_HELP)] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help=OUT_HELP, show_default=False)] = None,
) -> None:
    """Compare runs that were evaluated on the same problems: print differences, intervals, p-values and verdicts.

    Runs that differ only in their seed form one condition; conditions are compared in pairs. It is an error if runs
    differ in other settings than the factor (--factor), for example in data or reward; --allow permits this.

    Example: [cyan]egpo compare runs/grpo-0 runs/grpo-1 runs/egpo-0 runs/egpo-1[/]
    """
    from egpo.cli.silence import now_doing
    from egpo.comparisons.outputs import as_csv, write_json, write_text

    now_doing("comparing")
    found = _of_scores(runs, scores, cases, effect) if scores else _of_runs(runs, factor, allow, exam, metric, seed)
    _show(found, as_json, markdown)
    if csv is not None:
        write_text(csv, as_csv(found))
    if out is not None:
        typer.echo(f"written to {write_json(found, out)}", err=True)


def _of_runs(
    runs: list[Path] | None,
    factor: list[str] | None,
    allow: bool,
    exam: str | None,
    metric: list[str] | None,
    seed: int,
) -> "Comparison":
    from egpo.comparisons.comparison import ComparisonOptions, compare_runs

    default = ComparisonOptions()
    return compare_runs(
        runs or [],
        ComparisonOptions(factor or default.factors, exam, metric or default.metrics, allow=allow, seed=seed),
    )


def _of_scores(runs: list[Path] | None, scores: list[str], cases: int | None, effect: float) -> "Comparison":
    from egpo.comparisons.scores import compare_scores, read_scores
    from egpo.errors import InputError

    if runs:
        fix = "give either run folders or --scores"
        raise InputError("run folders and --scores cannot be combined", where="egpo compare", fix=fix)
    return compare_scores(read_scores(scores), cases, effect / 100)


def _show(found: "Comparison", as_json: bool, markdown: bool) -> None:
    from egpo.comparisons.outputs import as_json as json_text
    from egpo.comparisons.outputs import as_markdown

    if as_json or markdown:
        typer.echo(json_text(found) if as_json else as_markdown(found), nl=False)
    else:
        print_comparison(found)


def print_comparison(comparison: "Comparison") -> None:
    """Print the settings that make the comparison unfair, then the tables, then the verdicts in words."""
    from rich.console import Console

    from egpo.cli.tables import cell
    from egpo.comparisons.outputs import CONTRAST_COLUMNS, contrast_cells, verdict_lines

    console = Console(highlight=False, emoji=False)
    metrics = dict.fromkeys(row.metric for row in comparison.conditions)
    console.print(cell(f"{comparison.title}: {', '.join(metrics)}"))
    if comparison.unfair:
        console.print("[bold red]Not a fair comparison:[/]")
        for found in comparison.unfair:
            console.print(f"  {cell(str(found))}")
    several = len(metrics) > 1
    _print_table(console, CONDITION_COLUMNS, map(_condition_cells, comparison.conditions), with_metric=several)
    _print_table(console, CONTRAST_COLUMNS, map(contrast_cells, comparison.contrasts), with_metric=several)
    *verdicts, test = verdict_lines(comparison.contrasts)
    for verdict in verdicts:
        console.print(f"[bold]{cell(verdict)}[/]")
    console.print(cell(test))
    for note in comparison.notes:
        console.print(cell(note))


def _condition_cells(row: "ConditionRow") -> "Sequence[str]":
    """Return the table cells of one condition, in a short form for the terminal.

    --json, --markdown and --csv also list the names of the runs and their single evaluations.
    """
    from egpo.comparisons.outputs import figure, repeated, run_means

    runs = run_means(row) if len(row.runs) > 1 else "1"
    return row.label, row.metric, figure(row.mean, row.is_share), runs, repeated(row)


def _print_table(
    console: "Console", columns: "Sequence[str]", rows: "Iterable[Sequence[str]]", *, with_metric: bool
) -> None:
    """Print a table. Its second column is the metric, which the title has if there is only one."""
    from egpo.cli.tables import safe_table

    if with_metric:
        console.print(safe_table("", columns, rows, num_text=2))
    else:
        shorter = [(first, *rest) for first, _, *rest in rows]
        console.print(safe_table("", (columns[0], *columns[2:]), shorter))
