"""A board that is kept as evidence: runs without weights and texts, read without their recipes.

    board.yaml                the board file
    holes.yaml                why runs are missing
    before_training/<task>/   the evaluations of the base model and of the cold start, once for each task
    runs/<run>/               as `egpo board` names them

The settings of a stored run are those that it was made with: recipes of the package may have changed since then, and
own estimators and loss forms are not needed. Settings of runs are compared with each other by `judgement`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from egpo.boards.board_file import BOARD_FILE, Board, ExamKind, load_board
from egpo.boards.cells import NOT_STARTED, run_name
from egpo.boards.judgement import Judgement, judge
from egpo.config.yaml_text import dump_yaml, parse_yaml
from egpo.errors import Fault, InputError
from egpo.runs.folder import RunFolder
from egpo.runs.stored import StoredRun
from egpo.sections import Section

HOLES_FILE = "holes.yaml"


@dataclass(frozen=True)
class StoredCell:
    """One run of a stored board, which may be missing. `exams`: names of its evaluations by their kind."""

    task: str
    method: str
    seed: int
    run: RunFolder
    steps: int = 0
    exams: Mapping[ExamKind, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.run.path.name

    def exam(self, kind: ExamKind) -> str:
        return self.exams.get(kind) or self.exams.get("sampled", "")

    def other_settings(self) -> list[Fault]:
        return []


class Holes(Section):
    """The file `holes.yaml`. `not_started`: the reason of all missing runs that are not named."""

    not_started: str = NOT_STARTED
    missing: Annotated[dict[str, str], Field(strict=False)] = Field({})
    failed: Annotated[dict[str, str], Field(strict=False)] = Field({})


@dataclass(frozen=True)
class StoredBoard:
    """A board, its cells, and why results are missing."""

    board: Board
    cells: Sequence[StoredCell]
    holes: Holes

    def judge(self) -> Judgement:
        named = {cell.name: self.holes.not_started for cell in self.cells if not cell.run.config.is_file()}
        return judge(self.board, self.cells, self.holes.failed, {**named, **self.holes.missing})


def read_stored_board(folder: Path) -> StoredBoard:
    """Read a board and its runs from a folder. Raise InputError if a file is missing or damaged."""
    board = replace(load_board(folder / BOARD_FILE), folder=folder)
    cells = [
        StoredCell(task, method, seed, RunFolder(board.runs / run_name(task, method, seed)))
        for seed in board.seeds
        for task in board.tasks
        for method in board.methods
    ]
    known = {task: _measured([cell for cell in cells if cell.task == task]) for task in board.tasks}
    named = [replace(cell, steps=known[cell.task].steps, exams=known[cell.task].exams) for cell in cells]
    return StoredBoard(board, named, read_holes(folder / HOLES_FILE))


def read_holes(path: Path) -> Holes:
    if not path.is_file():
        return Holes()
    try:
        return Holes.model_validate(parse_yaml(path.read_text(encoding="utf-8"), str(path)).value or {})
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        fix = "write not_started: REASON, missing: {RUN: REASON}, failed: {RUN: REASON}"
        raise InputError(f"the file cannot be read ({error!s:.120})", where=str(path), fix=fix) from error


def holes_text(holes: Holes) -> str:
    """Return the content of `holes.yaml`."""
    return dump_yaml(holes.model_dump(mode="json"))


def _measured(cells: Sequence[StoredCell]) -> StoredCell:
    """Return the first cell of a task that has a run, with the steps and the evaluations of this run."""
    for cell in cells:
        run = StoredRun.at(cell.run.path)
        if run.config_yaml:
            task, last = run.setting("task", "name"), run.planned_steps or 0
            exams: dict[ExamKind, str] = {}
            for one in run.evaluations:
                if one.is_evaluation and one.step == last and one.header["task"] == task:
                    exams["greedy" if one.section("sampling").get("temperature") == 0 else "sampled"] = one.exam
            return replace(cell, steps=last, exams=exams)
    return cells[0]
