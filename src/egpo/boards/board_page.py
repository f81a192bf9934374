"""The page of a board, `board.md` and `board.html`: a table and the learning curves per task, and the holes."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from egpo.boards.board_chart import ChartLine, as_file, learning_curves
from egpo.boards.board_file import Board
from egpo.boards.cells import BoardCell
from egpo.boards.judgement import BoardDifference, BoardRow, Hole, Judgement, TaskJudgement
from egpo.comparisons.outcome import POWER
from egpo.comparisons.outputs import markdown_cell, markdown_table
from egpo.comparisons.result import NOT_DISTINGUISHABLE, p_text, signed
from egpo.evals.intervals import Estimate
from egpo.files import write_atomically
from egpo.methods import Method
from egpo.reports.page import TableSection, render_sections_page
from egpo.runs.stored import StoredRun

_NONE = "–"
_WHOLE = re.compile(r"\[[^\]]*\]|[\d.]+ (?:→ [\d.]+|%|of \d+)")
_COUNTS = ("no", "one", "two", "three", "four", "five", "six")


def write_page(board: Board, cells: Sequence[BoardCell], judgement: Judgement) -> list[Path]:
    """Write `board.md`, `board.html` and a figure per task to the board's folder. Return the two pages."""
    sections = sections_of(board, cells, judgement)
    written = {f"board-{one.title}.svg": as_file(one.svg) for one in sections if one.svg}
    title = f"# {markdown_cell(judgement.name)}\n"
    written["board.md"] = title + as_markdown(sections, 2, "board-{}.svg")
    whole = [replace(one, rows=[list(map(_unbroken, row)) for row in one.rows]) for one in sections]
    written["board.html"] = render_sections_page("egpo board", judgement.name, whole)
    for name, text in written.items():
        write_atomically(board.folder / name, text)
    return [board.folder / "board.md", board.folder / "board.html"]


def sections_of(board: Board, cells: Sequence[BoardCell], judgement: Judgement) -> list[TableSection]:
    """Return the content of the page: a summary, a section with a figure for each task, the methods, and the missing
    results."""
    of_tasks = [_of_task(board, cells, judgement, one) for one in judgement.tasks]
    methods = [found for found in [_methods(judgement)] if found.notes]
    return [_opening(judgement), *of_tasks, *methods, *([_holes(judgement)] if judgement.holes else [])]


def _unbroken(text: str) -> str:
    """Return the text of a cell so that no line ends within an interval or a change."""
    return _WHOLE.sub(lambda match: match[0].replace(" ", "\u00a0"), text)


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
    seeds = _NONE
    if row.by_seed:
        num, wanted = len(row.by_seed), len(judgement.seeds)
        seeds = str(num) if num == wanted else f"{num} of {wanted}"
    return [
        *found,
        f"{100 * detectable:.1f}" if detectable else _NONE,
        seeds,
        seconds,
        entropy,
        verdict(row, judgement),
    ]


def verdict(row: BoardRow, judgement: Judgement) -> str:
    """Return the finding of a row in words, and how many things the method changes if there are several."""
    return "; ".join(text for text in (finding_text(row, judgement), changes_text(row).partition(":")[0]) if text)


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
    summary += f"; not tested yet: {judgement.num_pairs - len(tested)}." if len(tested) < judgement.num_pairs else "."
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
    """Yield a sentence for each method and finding, with the tasks for which it was found."""
    tasks: dict[tuple[str, str], list[str]] = {}
    for one in judgement.tasks:
        for row in one.rows:
            difference = row.from_baseline
            if difference is not None and difference.finding != NOT_DISTINGUISHABLE:
                tasks.setdefault((row.name, verdict(row, judgement)), []).append(one.task)
    for (name, found), of_method in sorted(tasks.items(), key=lambda item: item[0][0]):
        yield f"{name}: {found} ({', '.join(of_method)})."


def _of_task(board: Board, cells: Sequence[BoardCell], judgement: Judgement, one: TaskJudgement) -> TableSection:
    about = f"{one.exam}: {one.num_problems:,} problems, {one.steps:,} steps. Recipe `{board.tasks[one.task].recipe}`."
    if not one.rows:
        about = f"No results yet. Recipe `{board.tasks[one.task].recipe}`."
    ordered = sorted(one.rows, key=lambda row: -row.accuracy.value)
    rows = [cells_of(row, judgement) for row in (*one.before, *ordered)] + _empty_rows(board, judgement, one)
    unfair = [f"Not a fair comparison: {found}" for found in one.unfair]
    runs: dict[str, list[StoredRun]] = {}
    for cell in cells:
        if cell.task == one.task and cell.run.config.is_file():
            runs.setdefault(cell.method, []).append(StoredRun.at(cell.run.path))
    # Colours follow the board file, so that a method looks the same for every task; the legend follows the results.
    names = [*(row.name for row in ordered), *(name for name in board.methods if name not in {r.name for r in ordered})]
    places = {name: place for place, name in enumerate(name for name in board.methods if name != board.baseline)}
    lines = [
        ChartLine(name, runs[name], places.get(name), is_control(board.methods[name])) for name in names if name in runs
    ]
    figure = learning_curves(one.task, lines) if lines else ""
    return TableSection(one.task, [about, *unfair], columns_of(judgement), rows, figure)


def _methods(judgement: Judgement) -> TableSection:
    """Return what each method is and changes, in the order of the board."""
    texts = {
        row.name: "; ".join(text for text in (row.about, changes_text(row)) if text)
        for one in judgement.tasks
        for row in one.rows
    }
    return TableSection("Methods", notes=[f"{name}: {text}" for name, text in texts.items() if text])


def is_control(method: Method) -> bool:
    """Return whether a method is a control, which learns from random rewards."""
    return bool(method.settings.get("algorithm.random_rewards"))


def _empty_rows(board: Board, judgement: Judgement, one: TaskJudgement) -> list[list[str]]:
    """Return a row for each method without any result: empty cells, and the reason."""
    found, width = {row.name for row in one.rows}, len(columns_of(judgement))
    rows = []
    for name in (name for name in board.methods if name not in found):
        holes = [hole for hole in judgement.holes if (hole.task, hole.method) == (one.task, name)]
        rows.append([name, *[_NONE] * (width - 2), "; ".join(dict.fromkeys(map(_reason, holes))) or "no result"])
    return rows


def _reason(hole: Hole) -> str:
    return f"failed: {hole.reason}" if hole.failed else hole.reason


def _holes(judgement: Judgement) -> TableSection:
    """Return the missing results, those of one task and reason in one row."""
    groups: dict[tuple[str, str], dict[str, list[str]]] = {}
    for hole in judgement.holes:
        of_method = groups.setdefault((hole.task, _reason(hole)), {})
        of_method.setdefault(hole.method, []).append(str(hole.seed))
    rows = [
        [task, ", ".join(f"{name} ({' '.join(seeds)})" for name, seeds in of_method.items()), reason]
        for (task, reason), of_method in groups.items()
    ]
    num = len(judgement.holes)
    said = f"{num} {'run has' if num == 1 else 'runs have'} no result."
    return TableSection("Missing results", [said], ["task", "methods (seeds)", "reason"], rows)


def as_markdown(sections: Sequence[TableSection], level: int, figure: str) -> str:
    """Return sections as Markdown with headings of a level. `figure` is the pattern of a figure's address, with {} for
    the section's title."""
    lines: list[str] = []
    for section in sections:
        lines += ["", f"{'#' * level} {markdown_cell(section.title)}"]
        for text in section.paragraphs:
            lines += ["", text]
        if section.rows:
            lines += ["", *markdown_table(section.columns, section.rows)]
        if section.svg:
            lines += ["", f"![learning curves of {section.title}]({figure.format(section.title)})"]
        lines += ["", *(f"- {note}" for note in section.notes)] if section.notes else []
    return "\n".join(lines) + "\n"
