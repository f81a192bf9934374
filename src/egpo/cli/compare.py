"""`egpo compare`: was it fair, is there a difference, and could one have been seen?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from egpo.comparisons.result import Comparison

RUNS_HELP = "Run folders; a plain model, such as the base, by the JSON of its evaluation."
CASES_HELP = "Of each evaluation in --scores."
FACTOR_HELP = "What may differ: a key or a section of the config; again for more. Default: algorithm."
EVAL_HELP = "Which evaluation, by its file's name without step and seed, as in countdown-n8-t1; * stands for anything."
METRIC_HELP = "accuracy, score or pass@K; again for more. All that is looked at is corrected for together."
ALLOW_HELP = "Compare though something else differs too, and say so in every output."
SCORES_HELP = (
    "Figures in place of runs: NAME=MEAN±SDxEVALUATIONS, NAME=61.0,62.5 or a YAML or CSV file; again for more."
)
OUT_HELP = "Folder for compare.json, which `egpo report` shows: the runs' parent folder, say."


def compare(
    runs: Annotated[list[Path] | None, typer.Argument(metavar="RUN", help=RUNS_HELP, show_default=False)] = None,
    factor: Annotated[list[str] | None, typer.Option("--factor", metavar="KEY", help=FACTOR_HELP)] = None,
    allow: Annotated[bool, typer.Option("--allow", help=ALLOW_HELP)] = False,
    exam: Annotated[str | None, typer.Option("--eval", metavar="NAME", help=EVAL_HELP, show_default=False)] = None,
    metric: Annotated[list[str] | None, typer.Option("--metric", metavar="NAME", help=METRIC_HELP)] = None,
    scores: Annotated[list[str] | None, typer.Option("--scores", metavar="WORD", help=SCORES_HELP)] = None,
    cases: Annotated[int | None, typer.Option(min=2, help=CASES_HELP, show_default=False)] = None,
    effect: Annotated[float, typer.Option(min=0.01, help="Points to plan evaluations for, with --scores.")] = 2.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the resampling.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write a line a contrast there.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help=OUT_HELP, show_default=False)] = None,
) -> None:
    """Compare runs that share data, reward and evaluation, and say what can be told apart.

    Runs whose settings differ in their seed alone are seeds of one condition. A run that differs from another in more
    than the factor is refused, with the differences, unless --allow.

    Example: [cyan]egpo compare runs/grpo-0 runs/grpo-1 runs/egpo-0 runs/egpo-1[/]
    """
    from egpo.comparisons.outputs import as_csv, write_json, write_text

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
        raise InputError("runs and --scores", where="egpo compare", fix="compare one or the other")
    return compare_scores(read_scores(scores), cases, effect / 100)


def _show(found: "Comparison", as_json: bool, markdown: bool) -> None:
    from egpo.cli.compare_tables import print_comparison
    from egpo.comparisons.outputs import as_json as json_text
    from egpo.comparisons.outputs import as_markdown

    if as_json or markdown:
        typer.echo(json_text(found) if as_json else as_markdown(found), nl=False)
    else:
        print_comparison(found)
