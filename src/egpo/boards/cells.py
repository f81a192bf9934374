"""The cells of a board: each is an experiment of one task, one method and one seed, in the board's folder.

Cells are ordered by seed, then task, then method, so that an unfinished board has whole seeds. What the cells of a task
have in common (data, cold start, evaluations before RL) is computed once (`experiments.pipeline`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from egpo.boards.board_file import START_SETTINGS, Board, ExamKind
from egpo.comparisons.compared_models import ComparedModel
from egpo.config import load_config
from egpo.config.yaml_text import dump_yaml
from egpo.errors import ConfigError, EgpoError, Fault, InputError
from egpo.evals.responses import StoredEvaluation
from egpo.evals.targets import exam_name
from egpo.experiments.exams import exams_of
from egpo.experiments.experiment import Experiment
from egpo.experiments.kept import missing_result, remove_surplus
from egpo.experiments.parallel import ExperimentsFailedError, run_parallel
from egpo.experiments.pipeline import require_runnable
from egpo.experiments.screen import Screen
from egpo.experiments.stages import STAGES, Selection
from egpo.experiments.validate import require_later_stages
from egpo.files import write_atomically
from egpo.runs.differences import refuse_other_training
from egpo.runs.folder import RunFolder
from egpo.runs.stored import StoredRun, read_json_object

SELECTION = Selection.of([name for name in STAGES if name != "probe"])
NOT_STARTED = "not started"


class BoardCell(Protocol):
    """What the judgement and the page read of a cell: `Cell`, or `stored_board.StoredCell` without its recipe."""

    @property
    def task(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def run(self) -> RunFolder: ...
    @property
    def steps(self) -> int: ...
    def exam(self, kind: ExamKind) -> str:
        """Return the name of the evaluation of this kind, without model and step."""
        ...

    def other_settings(self) -> list[Fault]:
        """Return the settings in which the run differs from the board; none if there is no run."""
        ...


@dataclass(frozen=True)
class Cell:
    """One training run of a board."""

    task: str
    method: str
    seed: int
    experiment: Experiment

    @property
    def name(self) -> str:
        return self.experiment.name

    @property
    def run(self) -> RunFolder:
        return self.experiment.run

    @property
    def steps(self) -> int:
        return self.experiment.config.steps

    def exam(self, kind: ExamKind) -> str:
        exams = exams_of(self.experiment.training)
        greedy = [exam for exam in exams if exam.sampling.temperature == 0]
        return exam_name(greedy[0] if kind == "greedy" and greedy else exams[0])

    def other_settings(self) -> list[Fault]:
        return other_settings(self)


def load_cells(board: Board) -> list[Cell]:
    """Return all cells of a board. Raise ConfigError with the faults of all recipes and settings."""
    faults: list[Fault] = []
    recipes: dict[tuple[str, str], list[str]] = {}
    for task, entry in board.tasks.items():
        found = _config_faults(entry.recipe, _overrides(entry.set), f"{board.path} task `{task}`")
        faults += found
        for name in board.methods if not found else ():
            overrides = _overrides({**entry.set, **START_SETTINGS, **board.methods[name].settings})
            recipes[task, name] = overrides
            own = [f"name={run_name(task, name, 0)}"]
            faults += _config_faults(entry.recipe, [*overrides, *own], f"{board.path} task `{task}`, method `{name}`")
    if faults:
        raise ConfigError(dict.fromkeys(faults))
    return [_cell(board, *place, seed, overrides) for seed in board.seeds for place, overrides in recipes.items()]


def _cell(board: Board, task: str, method: str, seed: int, overrides: Sequence[str]) -> Cell:
    own = {"seed": seed, "runs": str(board.runs), "name": run_name(task, method, seed)}
    words, recipe = (*overrides, *_overrides(own)), board.tasks[task].recipe
    return Cell(task, method, seed, Experiment(recipe, load_config(recipe, words), words))


def run_name(task: str, method: str, seed: int) -> str:
    return f"{task}-{method}-s{seed}"


def _overrides(settings: Mapping[str, object]) -> list[str]:
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]


def _config_faults(recipe: str, overrides: Sequence[str], where: str) -> list[Fault]:
    """Return what is wrong with a recipe and these overrides, including what it takes from outside the package."""
    try:
        config = load_config(recipe, overrides)
        require_later_stages(config)
        config.algorithm.check_estimator()
        config.update.check_names()
    except InputError as error:
        return [_placed(fault, where) for fault in error.faults]
    return []


def _placed(fault: Fault, where: str) -> Fault:
    return replace(fault, where=f"{where}: {fault.where}" if fault.where else where)


def require_fit(board: Board, cells: Sequence[Cell]) -> None:
    """Raise ConfigError with everything that would stop a cell later: run folders with other settings, methods of a
    task that do not share data and cold start, models and engines that cannot be used here."""
    faults: list[Fault] = []
    for place, cell in {(cell.task, cell.method): cell for cell in reversed(cells)}.items():
        where = f"{board.path} task `{place[0]}`, method `{place[1]}`"
        faults += [_placed(fault, where) for fault in _stage_faults(cell)]
    for cell in cells:
        fix = "remove the run's folder, or choose another `folder` for the board"
        faults += [replace(fault, fix=fix) for fault in other_settings(cell)]
    faults += _unshared(board, cells)
    if faults:
        raise ConfigError(dict.fromkeys(faults))


def _stage_faults(cell: Cell) -> list[Fault]:
    if cell.experiment.run.config.is_file():  # its settings are compared by `other_settings`
        return []
    try:
        require_runnable(cell.experiment, SELECTION)
    except InputError as error:
        return error.faults
    return []


def other_settings(cell: Cell) -> list[Fault]:
    """Return the settings in which the run in the cell's folder differs from the board; none if there is no run.

    Paths to the same data and cold start may differ: digests are compared by `judgement`.
    """
    run, config = StoredRun.at(cell.experiment.run.path), cell.experiment.config
    if not run.config_yaml:
        return []
    wanted = config.model_dump(mode="json")
    source, model = (run.config.get("task") or {}).get("settings", {}).get("source"), run.setting("model", "path")
    wanted["task"]["settings"] |= {} if source is None else {"source": source}
    wanted["model"] |= {"path": model} if config.cold_start and model else {}
    try:
        changed = config.model_dump(mode="json", exclude_defaults=True)
        refuse_other_training(run.config_yaml, dump_yaml(wanted), str(run.folder.path), changed)
    except ConfigError as error:
        return error.faults[:-1]
    return []


def _unshared(board: Board, cells: Sequence[Cell]) -> Iterator[Fault]:
    """Yield the methods whose data or cold start differ from those of the task's first cell."""
    firsts: dict[str, Cell] = {}
    for cell in cells:
        first = firsts.setdefault(cell.task, cell)
        for kind in ("data", "cold_start"):
            plans = [getattr(one.experiment, kind) for one in (first, cell)]
            ours, other = ({} if plan is None else plan.inputs for plan in plans)
            if ours != other and cell.seed == first.seed:
                what = f"its {kind.replace('_', ' ')} differs from that of `{first.method}`"
                where = f"{board.path} task `{cell.task}`, method `{cell.method}`"
                yield Fault(what, where, "leave out the settings of the method that change it")


def missing(cell: Cell) -> str | None:
    """Return why a cell has no result yet; None if it is done and its settings, data and files are unchanged."""
    return missing_result(cell.experiment) if cell.run.path.is_dir() else NOT_STARTED


def run_cells(board: Board, cells: Sequence[Cell], screen: Screen) -> dict[str, str]:
    """Run every cell that is not done. Return the reason of each failure by the name of its run.

    Of cells that were done before, what the board does not keep is removed first.
    """
    keep_board_file(board)
    todo = [cell.experiment for cell in cells if missing(cell) is not None]
    screen.say(f"{board.name}: {len(cells) - len(todo)} of {len(cells)} runs are done")
    for experiment in (cell.experiment for cell in cells if cell.experiment not in todo):
        if (removed := remove_surplus(experiment, board.keep)) is not None:
            screen.say(f"{experiment.name}: removed {removed}")
    if not todo:
        return {}
    try:
        run_parallel(todo, replace(SELECTION, keep=board.keep), board.parallel, screen)
    except ExperimentsFailedError as error:
        return {fault.where: f"{fault.what}; {fault.fix}" for fault in error.faults}
    return {}


def earlier_failures(board: Board) -> dict[str, str]:
    """Return the reasons of the failures that `board.json` lists, by the name of the run."""
    path = board.results
    held = read_json_object(path).get("holes", []) if path.is_file() else []
    return {str(hole["cell"]): str(hole["reason"]) for hole in held if isinstance(hole, dict) and hole.get("failed")}


def keep_board_file(board: Board) -> None:
    """Copy the board file to the board's folder, so that the folder says what its runs are."""
    text = board.path.read_text(encoding="utf-8")
    if not board.copy.is_file() or board.copy.read_text(encoding="utf-8") != text:
        board.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(board.copy, text)


def evaluated(board: Board, cell: BoardCell) -> ComparedModel | str:
    """Return the run with its evaluation; or, if there is none, the reason."""
    run, steps = StoredRun.at(cell.run.path), cell.steps
    if not run.config_yaml:
        return NOT_STARTED
    try:
        if others := cell.other_settings():
            return others[0].what
        files = [one for one in run.evaluations if one.is_evaluation and one.step == steps]
        held = [StoredEvaluation(one.path, one.header) for one in files if one.exam == cell.exam(board.exam)]
        if held:
            return ComparedModel(run.name, held, run)
    except EgpoError as error:
        return str(error.faults[0])
    return f"step {run.last_step} of {steps}" if run.last_step < steps else "trained, but not evaluated"
