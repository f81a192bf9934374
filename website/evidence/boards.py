"""Boards in docs/evidence/boards: how they get there, and their part of docs/board.md.

A stripped board has its board file, the evidence of its complete runs, and in `holes.yaml` why the others are missing.
The part of the page is written by the functions of `egpo board --page`, from these files alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from egpo.boards.board_chart import as_file
from egpo.boards.board_file import BOARD_FILE, load_board
from egpo.boards.board_page import as_markdown, sections_of
from egpo.boards.cells import NOT_STARTED, earlier_failures, run_name
from egpo.boards.stored_board import HOLES_FILE, Holes, holes_text, read_stored_board
from egpo.errors import InputError
from egpo.runs.stored import StoredRun
from website.evidence.sittings import Sittings, check_sittings
from website.evidence.stripping import Files, Scrubber, Stripped, stripped_run, unfinished

BOARDS = "boards"


def is_board(folder: Path) -> bool:
    return (folder / BOARD_FILE).is_file() and (folder / "runs").is_dir()


def strip_board(folder: Path, board_file: Path | None = None, not_run: str = "") -> Stripped:
    """Return the evidence of a board's complete runs. Raise InputError if there is none.

    `not_run`: why runs were not started; of runs that failed or are not finished, the folder knows the reason.
    """
    board = replace(load_board(board_file or folder / BOARD_FILE), folder=folder)
    failed = earlier_failures(board)
    files: Files = {}
    missing: dict[str, str] = {}
    for task, method, seed in ((t, m, s) for s in board.seeds for t in board.tasks for m in board.methods):
        name = run_name(task, method, seed)
        run = StoredRun.at(board.runs / name)
        if not run.config_yaml:
            continue
        if reason := unfinished(run):
            missing[name] = reason
        else:
            files = stripped_run(run, board.runs, task) | files
    if not files:
        fix = "run the board first, or give its folder, which has `runs`"
        raise InputError("the board has no complete run", where=str(folder), fix=fix)
    done = {Path(path).parts[1] for path in files if path.startswith("runs/")}
    failed = {name: reason for name, reason in failed.items() if name not in done}
    left_out = {**missing, **failed}
    missing = {name: reason for name, reason in missing.items() if name not in failed}
    holes = Holes(not_started=not_run or NOT_STARTED, missing=missing, failed=failed)
    scrub = Scrubber(folder.resolve().parent)
    files[BOARD_FILE] = scrub.text(board.path).encode()
    files[HOLES_FILE] = scrub.clean(holes_text(holes)).encode()
    return Stripped({f"{BOARDS}/{board.name}/{path}": content for path, content in files.items()}, left_out)


def board_names(evidence: Path) -> list[str]:
    return sorted(path.parent.name for path in (evidence / BOARDS).glob(f"*/{BOARD_FILE}"))


@dataclass(frozen=True)
class BoardPart:
    """The part of a board in docs/board.md, and its figures by the names of their files."""

    text: str
    figures: Mapping[str, str]


def board_part(folder: Path) -> BoardPart:
    """Compute the part of a board from its evidence. Raise InputError if runs and sittings do not agree."""
    stored = read_stored_board(folder)
    name = stored.board.name
    runs = [StoredRun.at(cell.run.path) for cell in stored.cells if cell.run.config.is_file()]
    strangers = {path.parent.name for path in folder.glob("runs/*/config.yaml")} - {run.name for run in runs}
    if strangers:
        what = f"the run {min(strangers)} is not of this board"
        raise InputError(what, where=str(folder), fix="remove it, or restore board.yaml")
    sittings = check_sittings(folder, {f"runs/{run.name}": run for run in runs})
    judgement = stored.judge()
    sections = sections_of(stored.board, stored.cells, judgement)
    about = _about(folder, len(runs), len(stored.cells), sittings)
    figures = {f"board_{name}-{one.title}.svg": as_file(one.svg) for one in sections if one.svg}
    return BoardPart(f"### {name}\n\n{about}\n" + as_markdown(sections, 4, f"images/board_{name}-{{}}.svg"), figures)


def _about(folder: Path, num_runs: int, num_cells: int, sittings: Sittings) -> str:
    made = [
        f"{one.date}: {len(one.runs)} runs on {one.hardware}, {one.runs_at_a_time} at a time, {one.wall_minutes:g} "
        f"minutes, commit {one.commit[:12]}"
        for one in sittings.sittings
    ]
    lines = [
        f"{num_runs} of {num_cells} runs, from `docs/evidence/{BOARDS}/{folder.name}`: `board.yaml`, and of each run "
        "its settings, provenance, outcomes and the metrics of this page.",
        "",
        *(f"- {line}." for line in made),
    ]
    return "\n".join([*lines, "", "```", sittings.rerun, "```"] if sittings.rerun else lines)
