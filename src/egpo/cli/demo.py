"""`egpo demo`: train the packaged model with every estimator, or a real model on sums, and print how they compare."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from egpo.demos.demo import Demo
    from egpo.demos.findings import Gain, ModelDifference
    from egpo.evals.intervals import Estimate

FAST_HELP = "Train for 6 steps only. This takes about a minute, but is too short to show clear differences."
MODEL_HELP = (
    "Model to train. `egpo-tiny` is in the package. `smollm2-135m` is a real language model, fetched once (93 MB), and "
    "learns sums. A model folder or a GGUF file of at most 400 million weights is trained on them too."
)
OUT_HELP = "Folder for data, runs and report. Default: runs/demo, with the model's name and -fast if they are given."

_TITLES = {"sampled": "Sampled as in training (pass@1)", "greedy": "Greedy"}
_SUMS_SEED = (
    "One training with one seed. The intervals cover the choice of problems, but not the differences between seeds."
)
_NUM_SHOWN = 8
_ONE_SEED = (
    "Each estimator was trained with one seed. The intervals cover the choice of problems, but not the differences "
    "between seeds."
)


def demo(
    fast: Annotated[bool, typer.Option("--fast", help=FAST_HELP)] = False,
    model: Annotated[str, typer.Option(help=MODEL_HELP)] = "egpo-tiny",
    out: Annotated[Path | None, typer.Option(help=OUT_HELP, show_default=False)] = None,
) -> None:
    """Train the tiny model of this package on the Countdown task with GRPO and two variants of EGPO, and compare them.

    The demo prepares data, probes the model, trains three runs, evaluates them and writes a report, in
    about four minutes on two cores. An interrupted demo continues when the same command is given again.

    With another model (`--model smollm2-135m`), it trains that model with GRPO on short sums: from the model as it is,
    without supervised training first. It says after the first step how long the rest takes.

    Example: [cyan]egpo demo --fast[/]
    """
    from rich.console import Console

    from egpo.cli.progress import terminal_screen
    from egpo.demos.demo import FAST, FULL, DemoFolder, run_demo
    from egpo.demos.findings import BASE
    from egpo.demos.sums import fast_size, full_size, run_sums
    from egpo.evals.evaluate import file_name

    is_tiny = model == BASE
    name = "-".join(["demo", *([] if is_tiny else [file_name(Path(model).name)]), *(["fast"] if fast else [])])
    folder, console = DemoFolder(out or Path("runs", name)), Console(highlight=False)
    if is_tiny:
        print_closing(run_demo(folder, FAST if fast else FULL, terminal_screen()), console)
    else:
        size = fast_size(model) if fast else full_size(model)
        print_sums_closing(run_sums(folder, size, terminal_screen()), console)


def print_closing(demo: "Demo", console: "Console") -> None:
    """Print the results of the demo, and the path of its report.

    The results are the comparison of each estimator with the base model, the comparison of all pairs of estimators,
    and for each estimator whether sampled accuracy, greedy accuracy and response length have increased.
    """
    from egpo.cli.tables import cell
    from egpo.demos.findings import against_base, between_estimators, gains

    apart, pairs = list(against_base(demo.evaluations)), list(between_estimators(demo.evaluations))
    for manner, title in _TITLES.items():
        rows = [_against_base(one) for one in apart if one.manner == manner]
        _print_table(console, f"{title}: accuracy on held-out problems, in percent", "base -> trained", rows)
        _print_table(console, "", "difference", [_pair(one) for one in pairs if one.manner == manner])
    console.print()
    for line in (*map(_gain_line, gains(demo.evaluations)), demo.forecast, _ONE_SEED):
        console.print(cell(line))
    _print_end(demo, console)


def print_sums_closing(demo: "Demo", console: "Console") -> None:
    """Print the accuracy of the base and of the trained model, some answers of both, and the report's path."""
    from egpo.cli.tables import cell
    from egpo.demos.findings import gains

    title = f"Accuracy on {len(demo.base('greedy').samples)} held-out sums, in percent"
    _print_rows(console, title, ("answers", "model", "accuracy", "95 % interval", "verdict"), _sums_rows(demo), 2)
    title = "Some of these sums at equal distances, answered greedily (+: right)"
    _print_rows(console, title, ("sum", "base", "trained"), _some_answers(demo), 3)
    console.print()
    for line in (*map(_gain_line, gains(demo.evaluations)), demo.forecast, _SUMS_SEED):
        console.print(cell(line))
    _print_end(demo, console)


def _sums_rows(demo: "Demo") -> Iterable[Sequence[str]]:
    from egpo.demos.findings import against_base
    from egpo.evals.intervals import Estimate

    for one in against_base(demo.evaluations):
        for name, model in (("base", one.base), ("trained", one.other)):
            accuracy = Estimate(**demo.evaluations[one.manner][model].header["accuracy"])
            yield one.manner, name, f"{100 * accuracy.value:.1f}", _interval(accuracy, signed=False), ""
        delta = one.difference.delta
        yield one.manner, "difference", _points(delta.value), _interval(delta), one.difference.verdict


def _some_answers(demo: "Demo") -> Iterable[Sequence[str]]:
    distance = max(1, len(demo.base("greedy").samples) // _NUM_SHOWN)
    base, trained = (evaluation.samples[::distance] for evaluation in demo.evaluations["greedy"].values())
    for before, after in zip(base, trained, strict=True):
        # The key of a row is its last message and a digest.
        yield (
            before.problem.rpartition(" #")[0],
            *(f"{'+' if one.acc else '-'} {one.output}" for one in (before, after)),
        )


def _print_end(demo: "Demo", console: "Console") -> None:
    from egpo.cli.tables import cell
    from egpo.runs.formatting import format_duration

    console.print(f"This took {format_duration(demo.took_s)}. Open the report in a browser:")
    console.print(cell(str(demo.report)), style="bold", soft_wrap=True)


def _print_table(console: "Console", title: str, change: str, rows: Iterable[Sequence[str]]) -> None:
    _print_rows(console, title, ("model", change, "95 % interval", "verdict"), rows)


def _print_rows(
    console: "Console", title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], num_text: int = 1
) -> None:
    from rich import box

    from egpo.cli.tables import cell, safe_table

    # A table's own title would be wrapped to the table's width.
    console.print(f"\n{cell(title)}" if title else "", style="bold")
    table = safe_table("", columns, rows, num_text)
    table.box, table.show_edge = box.SIMPLE_HEAD, False
    console.print(table)


def _against_base(found: "ModelDifference") -> Sequence[str]:
    row = found.difference
    change = f"{100 * row.base:.1f} -> {100 * row.other:.1f} ({_points(row.delta.value)})"
    return found.other, change, _interval(row.delta), row.verdict


def _pair(found: "ModelDifference") -> Sequence[str]:
    row = found.difference
    return f"{found.other} - {found.base}", _points(row.delta.value), _interval(row.delta), row.verdict


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _interval(found: "Estimate", *, signed: bool = True) -> str:
    if found.low is None or found.high is None:
        return ""
    sign = "+" if signed else ""
    return f"{100 * found.low:{sign}.1f} to {100 * found.high:{sign}.1f}"


def _gain_line(gain: "Gain") -> str:
    length = f"mean length {gain.length.base:.0f} -> {gain.length.other:.0f} tokens"
    return f"{gain.estimator}: {gain.described} ({length})."
