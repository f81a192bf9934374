"""The page of a board, `board.md` and `board.html`: a table and the learning curves per task, and the holes."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from egpo.boards.board_chart import learning_curves
from egpo.boards.board_file import Board
from egpo.boards.cells import Cell
from egpo.boards.judgement import BoardDifference, BoardRow, Judgement, TaskJudgement
from egpo.comparisons.outcome import POWER
from egpo.comparisons.outputs import markdown_cell, markdown_table
from egpo.comparisons.result import NOT_DISTINGUISHABLE, p_text, signed
from egpo.evals.intervals import Estimate
from egpo.files import write_atomically
from egpo.reports.page import TableSection, render_sections_page
from egpo.runs.stored import StoredRun

_NONE = "–"
_COUNTS = ("no", "one", "two", "three", "four", "five", "six")


def write_page(board: Board, cells: Sequence[Cell], judgement: Judgement) -> list[Path]:
    """Write `board.md`, `board.html` and a figure per task to the board's folder. Return the two pages."""
    of_tasks = {one.task: _of_task(board, cells, judgement, one) for one in judgement.tasks}
    holes = [_holes(judgement)] if judgement.holes else []
    sections = [_opening(judgement), *of_tasks.values(), *holes]
    written = {f"board-{task}.svg": f"{section.svg}\n" for task, section in of_tasks.items()}
    written["board.md"] = _as_markdown(judgement, sections)
    written["board.html"] = render_sections_page("egpo board", judgement.name, sections)
    for name, text in written.items():
        write_atomically(board.folder / name, text)
    return [board.folder / "board.md", board.folder / "board.html"]


def columns_of(judgement: Judgement) -> list[str]:
    """Return the heads of a task's table. The claim about all baselines has columns only if there are several."""
    several = ["from the best baseline", "p, all baselines"] if len(judgement.baselines) > 1 else []
    start = ["method", "accuracy", f"difference from {judgement.baseline}", "p"]
    return [*start, *several, "detectable", "seeds", "seconds", "entropy", "verdict"]


def cells_of(row: BoardRow, judgement: Judgement) -> list[str]:
    """Return the cells of one row as text."""
    found = [row.name, accuracy_text(row.accuracy), *_difference_cells(row.from_baseline)]
    if len(judgement.baselines) > 1:
        found += _difference_cells(row.from_all, named=True)
    detectable = row.from_baseline and row.from_baseline.detectable
    seconds = _NONE if row.seconds is None else f"{row.seconds:,.0f}"
    entropy = _NONE
    if row.first_entropy is not None and row.last_entropy is not None:
        entropy = f"{row.first_entropy:.3f} → {row.last_entropy:.3f}"
    seeds = str(len(row.by_seed)) if row.by_seed else _NONE
    return [
        *found,
        f"{100 * detectable:.1f}" if detectable else _NONE,
        seeds,
        seconds,
        entropy,
        verdict(row, judgement),
    ]


def verdict(row: BoardRow, judgement: Judgement) -> str:
    """Return the finding of a row in words, with a warning if the method changes several things at once."""
    return "; ".join(text for text in (finding_text(row, judgement), changes_text(row)) if text)


def finding_text(row: BoardRow, judgement: Judgement) -> str:
    """Return the finding of a row in words; nothing for a model before RL."""
    if not row.by_seed:
        return ""
    if row.name == judgement.baseline:
        return "the baseline"
    first, second = row.from_baseline, row.from_all
    if first is None:
        return f"not tested: fewer than two seeds shared with {judgement.baseline}"
    if second is not None and second.finding != NOT_DISTINGUISHABLE:
        return f"{second.finding} than all baselines"
    if first.finding != NOT_DISTINGUISHABLE:
        return f"{first.finding} than {judgement.baseline}"
    return f"not distinguishable from {judgement.baseline}"


def changes_text(row: BoardRow) -> str:
    """Return which things a method changes at once; nothing if it is one."""
    if len(row.changes) < 2:
        return ""
    count = _COUNTS[len(row.changes)] if len(row.changes) < len(_COUNTS) else str(len(row.changes))
    return f"changes {count} things: {', '.join(row.changes)}"


def accuracy_text(found: Estimate) -> str:
    value = f"{100 * found.value:.1f} %"
    return (
        value if found.low is None or found.high is None else f"{value} [{100 * found.low:.1f}, {100 * found.high:.1f}]"
    )


def _difference_cells(found: BoardDifference | None, *, named: bool = False) -> list[str]:
    if found is None:
        return [_NONE, _NONE]
    text = signed(found.delta, True)
    if found.low is not None and found.high is not None:
        text += f" [{signed(found.low, True)}, {signed(found.high, True)}]"
    return [f"{text} ({found.against})" if named else text, p_text(found.adjusted_p).removeprefix("= ")]


def _opening(judgement: Judgement) -> TableSection:
    rows = [row for one in judgement.tasks for row in one.rows]
    tested = [row for row in rows if row.from_baseline is not None]
    found = [row for row in tested if row.from_baseline and row.from_baseline.finding != NOT_DISTINGUISHABLE]
    summary = f"{len(found)} of {judgement.num_pairs} pairs of method and task differ from {judgement.baseline}"
    summary += (
        f"; {judgement.num_pairs - len(tested)} are not tested yet." if len(tested) < judgement.num_pairs else "."
    )
    notes = [
        f"Seeds {', '.join(map(str, judgement.seeds))}. Accuracy in percent and differences in points, with 95 % "
        "intervals over seeds and problems (before RL: over problems). Differences are paired by seed and problem. p: "
        f"Holm's correction over the {judgement.num_pairs} pairs of method and task. Intervals are not corrected.",
        f"Detectable: the smallest true difference from {judgement.baseline} that is found with {100 * POWER:.0f} % "
        "power at the strictest corrected level. Seconds: training steps, mean of the seeds; runs that share a machine "
        "slow each other down. Entropy: nats per token, first and last step.",
    ]
    if len(judgement.baselines) > 1:
        notes.append(
            f"All baselines: {', '.join(judgement.baselines)}. Their p is the largest of those against each of them, "
            "so that it does not matter which one happens to be best; the difference shown is from the one with the "
            "highest accuracy."
        )
    if judgement.holes:
        notes.append("Results are missing: do not stop or extend the board because of what it shows so far.")
    return TableSection("Summary", [summary, *_named(judgement)], notes=notes)


def _named(judgement: Judgement) -> Iterator[str]:
    for one in judgement.tasks:
        for row in one.rows:
            difference = row.from_baseline
            if difference is not None and difference.finding != NOT_DISTINGUISHABLE:
                yield f"{one.task}: {row.name} is {verdict(row, judgement)}."


def _of_task(board: Board, cells: Sequence[Cell], judgement: Judgement, one: TaskJudgement) -> TableSection:
    about = f"{one.exam}: {one.num_problems:,} problems, {one.steps:,} steps. Recipe `{board.tasks[one.task].recipe}`."
    rows = [cells_of(row, judgement) for row in (*one.before, *one.rows)]
    unfair = [f"Not a fair comparison: {found}" for found in one.unfair]
    runs: dict[str, list[StoredRun]] = {}
    for cell in cells:
        if cell.task == one.task and cell.experiment.run.config.is_file():
            runs.setdefault(cell.method, []).append(StoredRun.at(cell.experiment.run.path))
    ordered = {name: runs[name] for name in board.methods if name in runs}
    notes = [f"{row.name}: {row.about}" for row in one.rows if row.about]
    return TableSection(
        one.task, [about, *unfair], columns_of(judgement), rows, learning_curves(one.task, ordered), notes
    )


def _holes(judgement: Judgement) -> TableSection:
    rows = [[hole.cell, "failed" if hole.failed else "missing", hole.reason] for hole in judgement.holes]
    return TableSection("Missing results", [f"{len(rows)} runs have no result."], ["run", "state", "reason"], rows)


def _as_markdown(judgement: Judgement, sections: Sequence[TableSection]) -> str:
    lines = [f"# {markdown_cell(judgement.name)}"]
    for section in sections:
        lines += ["", f"## {markdown_cell(section.title)}"]
        for text in section.paragraphs:
            lines += ["", text]
        if section.rows:
            lines += ["", *markdown_table(section.columns, section.rows)]
        if section.svg:
            lines += ["", f"![learning curves](board-{section.title}.svg)"]
        lines += ["", *(f"- {note}" for note in section.notes)] if section.notes else []
    return "\n".join(lines) + "\n"
