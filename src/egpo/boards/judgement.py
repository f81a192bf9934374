"""The statistics of a board, from the run folders: accuracies, differences from the baselines, and `board.json`.

Methods share seeds and problems, so that differences are tested pair by pair over both (`comparisons.paired_seeds`).
For each task and method there are two claims: it differs from the baseline, and it is better (or worse) than all
baselines. The second has the largest of the p-values against each baseline, so that nothing depends on which baseline
happens to be best. All claims of a board are corrected together by `holm_in_pairs`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

from egpo.boards.board_file import Board
from egpo.boards.cells import BoardCell, earlier_failures, evaluated
from egpo.comparisons.compared_models import ComparedModel
from egpo.comparisons.conditions import Condition
from egpo.comparisons.fairness import inequalities
from egpo.comparisons.outcome import ALPHA, DifferenceTest
from egpo.comparisons.paired_seeds import compare_paired_seeds, mean_over_seeds
from egpo.comparisons.result import Finding, finding_of, holm_in_pairs
from egpo.comparisons.values import ACCURACY, ComparedMetric, RunFigures, figures_of_run, shared_problems, table_SP
from egpo.evals.intervals import SHARES, Estimate, mean_with_interval
from egpo.evals.responses import StoredEvaluation
from egpo.files import write_atomically
from egpo.fingerprints import sealed
from egpo.runs.metric_table import ENTROPY
from egpo.runs.stored import EvaluationFile, StoredRun, evaluation_files
from egpo.version import __version__

FORMAT = 1
METRIC = ComparedMetric(ACCURACY)
COLD_START = "cold start of "


@dataclass(frozen=True)
class BoardDifference:
    """A method minus a baseline. `against`: the baseline with which the difference was measured. `p_value` is the
    largest over all baselines of the claim; `adjusted_p` has the correction for all claims of the board, and decides
    the finding. The interval has 95 % and is not corrected. `detectable`: the smallest difference that the first test
    of the correction finds with 80 % power."""

    against: str
    delta: float
    low: float | None
    high: float | None
    p_value: float
    adjusted_p: float
    detectable: float | None
    finding: Finding
    num_seeds: int


@dataclass(frozen=True)
class BoardRow:
    """One model on one task. Models before RL have no seeds. `seconds`: of training, mean over seeds."""

    name: str
    accuracy: Estimate
    by_seed: Mapping[int, float]
    about: str = ""
    changes: Sequence[str] = ()
    seconds: float | None = None
    first_entropy: float | None = None
    last_entropy: float | None = None
    from_baseline: BoardDifference | None = None
    from_all: BoardDifference | None = None


@dataclass(frozen=True)
class TaskJudgement:
    """The rows of one task. `unfair` lists what differs between runs besides the settings of the methods."""

    task: str
    exam: str
    steps: int
    num_problems: int
    before: Sequence[BoardRow]
    rows: Sequence[BoardRow]
    unfair: Sequence[str]


@dataclass(frozen=True)
class Hole:
    """A cell without a result, and the reason. `failed`: its run ended with an error."""

    cell: str
    reason: str
    failed: bool
    task: str
    method: str
    seed: int


@dataclass(frozen=True)
class Judgement:
    """A whole board. `num_pairs`: the pairs of task and method over which claims are corrected."""

    name: str
    baseline: str
    baselines: Sequence[str]
    seeds: Sequence[int]
    num_pairs: int
    tasks: Sequence[TaskJudgement]
    holes: Sequence[Hole]


def judge(
    board: Board,
    cells: Sequence[BoardCell],
    failures: Mapping[str, str] | None = None,
    reasons: Mapping[str, str] | None = None,
) -> Judgement:
    """Read the runs of a board and judge them. `failures` has the reasons of runs that failed, by the name of the run;
    `reasons` those of other holes, where the run folder does not say it."""
    known = {**earlier_failures(board), **(failures or {})}
    told = {**(reasons or {}), **known}
    found = {cell.name: evaluated(board, cell) for cell in cells}
    holes = [
        Hole(cell.name, told.get(cell.name, value), cell.name in known, cell.task, cell.method, cell.seed)
        for cell in cells
        if isinstance(value := found[cell.name], str)
    ]
    models = {name: value for name, value in found.items() if not isinstance(value, str)}
    tasks = [_task(board, [cell for cell in cells if cell.task == task], models) for task in board.tasks]
    tasks = _with_correction(tasks, board.num_pairs)
    return Judgement(board.name, board.baseline, board.baselines, board.seeds, board.num_pairs, tasks, holes)


def write_json(judgement: Judgement, path: Path) -> None:
    """Write `board.json`. Shares are between 0 and 1."""
    value = {"format": FORMAT, "egpo": __version__, **asdict(judgement)}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(sealed(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _task(board: Board, cells: Sequence[BoardCell], models: Mapping[str, ComparedModel]) -> TaskJudgement:
    of_method: dict[str, dict[int, ComparedModel]] = {}
    for cell in cells:
        if cell.name in models:
            of_method.setdefault(cell.method, {})[cell.seed] = models[cell.name]
    exam, steps = cells[0].exam(board.exam), cells[0].steps
    if not of_method:
        return TaskJudgement(cells[0].task, exam, steps, 0, [], [], [])
    figures = {
        method: {seed: figures_of_run(model, METRIC) for seed, model in runs.items()}
        for method, runs in of_method.items()
    }
    problems = shared_problems([run for runs in figures.values() for run in runs.values()])
    rows = [
        _row(board, method, figures[method], [run.run for run in of_method[method].values() if run.run], problems)
        for method in board.methods
        if method in figures
    ]
    rows = [row if row.name == board.baseline else _tested(board, row, figures, problems) for row in rows]
    conditions = [Condition(method, list(runs.values())) for method, runs in of_method.items()]
    unfair = [str(one) for one in inequalities(conditions, board.factors)]
    own = [one for runs in of_method.values() for run in runs.values() if run.run for one in run.run.evaluations]
    before = _before(exam, [*own, *evaluation_files(board.before_training / cells[0].task)])
    return TaskJudgement(cells[0].task, exam, steps, len(problems), before, rows, unfair)


def _row(
    board: Board, method: str, figures: Mapping[int, RunFigures], runs: Sequence[StoredRun], problems: Sequence[str]
) -> BoardRow:
    table = table_SP(list(figures.values()), problems)
    accuracy = Estimate(float(table.mean()), None, None, len(problems))
    if len(figures) > 1:
        accuracy = _within_shares(mean_over_seeds(table)[0])
    described, entropies = board.methods[method], [_entropies(run) for run in runs]
    return BoardRow(
        method,
        accuracy,
        dict(zip(figures, table.mean(1).tolist(), strict=True)),
        " ".join([described.about, *([f"({described.paper})"] if described.paper else [])]),
        described.changes,
        _mean([_seconds(run) for run in runs]),
        _mean([found[0] for found in entropies if found]),
        _mean([found[-1] for found in entropies if found]),
    )


def _within_shares(found: Estimate) -> Estimate:
    if found.low is None or found.high is None:
        return found
    return replace(found, low=max(SHARES[0], found.low), high=min(SHARES[1], found.high))


def _entropies(run: StoredRun) -> list[float]:
    return [float(line[ENTROPY]) for line in run.metrics if ENTROPY in line]


def _seconds(run: StoredRun) -> float:
    """Return the seconds of all training steps. A step that was done twice, after an interruption, counts once."""
    by_step = {line["step"]: float(line["timing_s/step"]) for line in run.timings if "timing_s/step" in line}
    return sum(by_step.values())


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _before(exam: str, files: Sequence[EvaluationFile]) -> list[BoardRow]:
    """Return the rows of the base model and of the cold start, whose evaluations the runs of a task share."""
    found: dict[bool, StoredEvaluation] = {}
    for one in files:
        if one.is_evaluation and one.step is None and one.exam.endswith(exam):
            found.setdefault(one.label.startswith(COLD_START), StoredEvaluation(one.path, one.header))
    rows = []
    for is_cold_start, evaluation in sorted(found.items(), key=lambda pair: pair[0]):
        accuracy = mean_with_interval(METRIC.by_problem(evaluation.samples).values(), bounds=SHARES)
        if accuracy is not None:
            rows.append(BoardRow("cold start" if is_cold_start else f"base ({evaluation.label})", accuracy, {}))
    return rows


def _tested(
    board: Board, row: BoardRow, figures: Mapping[str, Mapping[int, RunFigures]], problems: Sequence[str]
) -> BoardRow:
    """Return the row with its differences from the baseline and from all baselines, before the correction."""

    def test(baseline: str) -> DifferenceTest | None:
        seeds = _shared_seeds(figures, row.name, baseline)
        if len(seeds) < 2:
            return None
        tables = [table_SP([figures[name][seed] for seed in seeds], problems) for name in (baseline, row.name)]
        return compare_paired_seeds(*tables)

    def difference(baseline: str, p_value: float) -> BoardDifference:
        num_seeds = len(_shared_seeds(figures, row.name, baseline))
        return _difference(baseline, tested[baseline], p_value, ALPHA / board.num_pairs, num_seeds)

    others = [name for name in board.baselines if name != row.name]
    tested = {name: found for name in others if (found := test(name)) is not None}
    if board.baseline in tested:
        row = replace(row, from_baseline=difference(board.baseline, tested[board.baseline].p_value))
    if row.name not in board.baselines and len(others) > 1 and len(tested) == len(others):
        best = max(tested, key=lambda name: tested[name].base)
        is_one_sided = len({one.delta.value > 0 for one in tested.values()}) == 1
        largest = max(one.p_value for one in tested.values()) if is_one_sided else 1.0
        row = replace(row, from_all=difference(best, largest))
    return row


def _shared_seeds(figures: Mapping[str, Mapping[int, RunFigures]], one: str, other: str) -> list[int]:
    return [seed for seed in figures[one] if seed in figures.get(other, {})]


def _difference(against: str, test: DifferenceTest, p_value: float, level: float, num_seeds: int) -> BoardDifference:
    delta, detectable = test.delta, test.design.detectable(level)
    shown = detectable if detectable is not None and detectable <= 1 else None
    finding = finding_of(test, p_value)
    return BoardDifference(against, delta.value, delta.low, delta.high, p_value, 1.0, shown, finding, num_seeds)


def _with_correction(tasks: Sequence[TaskJudgement], num_pairs: int) -> list[TaskJudgement]:
    """Return the tasks with adjusted p-values and findings."""
    claims = {(one.task, row.name): (row.from_baseline, row.from_all) for one in tasks for row in one.rows}
    first = {pair: found[0].p_value for pair, found in claims.items() if found[0] is not None}
    second = {pair: found[1].p_value for pair, found in claims.items() if found[1] is not None and pair in first}
    adjusted = holm_in_pairs(first, second, num_pairs)

    def judged(pair: tuple[str, str], claim: int, found: BoardDifference | None) -> BoardDifference | None:
        if found is None:
            return None
        p_value = adjusted.get((pair, claim), 1.0)
        return replace(found, adjusted_p=p_value, finding=found.finding if p_value < ALPHA else "not distinguishable")

    return [
        replace(
            one,
            rows=[
                replace(
                    row,
                    from_baseline=judged((one.task, row.name), 1, row.from_baseline),
                    from_all=judged((one.task, row.name), 2, row.from_all),
                )
                for row in one.rows
            ],
        )
        for one in tasks
    ]
