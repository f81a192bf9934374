"""The judgement of a board, on run folders whose truth is known, and the correction of its p-values."""

import gzip
import itertools
import json
import shutil
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.boards.board_file import load_board
from egpo.boards.board_page import write_page
from egpo.boards.cells import load_cells
from egpo.boards.judgement import judge, write_json
from egpo.comparisons.result import holm, holm_in_pairs
from egpo.config import config_to_yaml
from egpo.runs.folder import RunFolder
from egpo.runs.metrics import MetricStream
from egpo.runs.provenance import Provenance, describe_launch, write_provenance
from tests.comparisons.folders import write_run_evaluation

BOARD = """
name: known
folder: known
tasks:
  one: {recipe: countdown_tiny, set: {steps: 4, eval.n: 4}}
  two: {recipe: countdown_tiny, set: {steps: 4, eval.n: 4, task.settings.max_number: 13}}
methods: [grpo, dr_grpo, egpo, token_entropy, {name: worse, set: {update.lr: 1e-3}}]
seeds: [0, 1, 2, 3, 4]
baselines: [grpo, dr_grpo]
"""
ACCURACIES = {"grpo": 0.4, "dr_grpo": 0.5, "egpo": 0.7, "token_entropy": 0.52, "worse": 0.1}
PROBLEMS = 100


def write_cell(cell, difficulty_P, launch):
    """A run with metrics and an evaluation: seeds move it by two points, problems differ."""
    rng = np.random.default_rng([cell.seed, sorted(ACCURACIES).index(cell.method), cell.task == "one"])
    chance_P = np.clip(ACCURACIES[cell.method] + difficulty_P + rng.normal(0, 0.02), 0, 1)
    with RunFolder.create(cell.experiment.run.path, config_to_yaml(cell.experiment.config)) as folder:
        write_provenance(folder.provenance, Provenance(cell.seed, {"train": "a" * 64}, launch))
        for step in range(1, 5):
            MetricStream(folder.metrics).append(step, {"actor/entropy": 1 / step, "critic/acc/mean": step / 10})
            MetricStream(folder.timings).append(step, {"timing_s/step": 2.0})
    right_PN = rng.random((PROBLEMS, 4)) < chance_P[:, None]
    write_run_evaluation(folder.path, right_PN, name="countdown-n4-t1-step4", step=4)
    write_run_evaluation(
        folder.path, np.full((PROBLEMS, 4), [1, 0, 0, 0]), name="base-countdown-n4-t1", step=None, model="base"
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of a board whose runs are written, the board and its cells, whose paths are relative."""
    folder = tmp_path_factory.mktemp("board")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "board.yaml").write_text(BOARD)
        board = load_board(folder / "board.yaml")
        cells = load_cells(board)
        difficulty_P = np.random.default_rng(0).uniform(-0.1, 0.1, PROBLEMS)
        launch = describe_launch(threads=1)
        for cell in cells:
            write_cell(cell, difficulty_P, launch)
    return folder, board, cells


@pytest.fixture
def known(written, tmp_path, monkeypatch):
    """The board and its cells, with runs that may be changed."""
    folder, board, cells = written
    shutil.copytree(folder, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return board, cells


def test_a_board_tells_what_is_better_than_the_baseline_and_than_all(known):
    judgement = judge(*known)
    assert judgement.num_pairs == 8
    for task in judgement.tasks:
        rows = {row.name: row for row in task.rows}
        assert (task.num_problems, task.unfair, len(task.before)) == (PROBLEMS, [], 1)
        assert task.before[0].accuracy.value == 0.25
        assert rows["grpo"].from_baseline is None
        assert rows["dr_grpo"].from_all is None
        assert {name: row.from_baseline.finding for name, row in rows.items() if row.from_baseline} == {
            "dr_grpo": "better",
            "egpo": "better",
            "token_entropy": "better",
            "worse": "worse",
        }
        assert {name: row.from_all.finding for name, row in rows.items() if row.from_all} == {
            "egpo": "better",
            "token_entropy": "not distinguishable",
            "worse": "worse",
        }
        assert {row.from_all.against for row in rows.values() if row.from_all} == {"dr_grpo"}
        for name, row in rows.items():
            assert row.accuracy.low < ACCURACIES[name] < row.accuracy.high
            assert (row.seconds, row.first_entropy, row.last_entropy) == (8.0, 1.0, 0.25)
            if row.from_all:
                assert row.from_all.p_value >= row.from_baseline.p_value
                assert row.from_all.adjusted_p >= row.from_baseline.adjusted_p


def test_holes_are_reported_and_do_not_change_the_correction(known):
    board, cells = known
    whole = judge(board, cells)
    lost = [cell for cell in cells if (cell.task, cell.method) == ("one", "egpo")]
    for cell in lost:
        (cell.experiment.run.path / "evals/countdown-n4-t1-step4.json").unlink()
    part = judge(board, cells, {lost[0].name: "ended with code 1: no memory"})
    assert [hole.cell for hole in part.holes] == [cell.name for cell in lost]
    assert [hole.reason for hole in part.holes] == ["ended with code 1: no memory", *["trained, but not evaluated"] * 4]
    assert part.num_pairs == whole.num_pairs
    assert "egpo" not in [row.name for row in part.tasks[0].rows]
    write_json(part, board.results)
    again = judge(board, cells)
    assert again == part, "the reason of a failure is kept"


def test_a_run_with_other_settings_is_a_hole(known):
    board, cells = known
    config = cells[0].experiment.run.config
    config.write_text(config.read_text().replace("lr: 3.0e-05", "lr: 4.0e-05"))
    (hole,) = judge(board, cells).holes
    assert hole.cell == cells[0].name
    assert "update.lr: 4.0e-05 -> 3.0e-05" in hole.reason


def test_seeds_are_paired_only_where_both_have_them(known):
    board, cells = known
    for cell in cells:
        if cell.method == "egpo" and cell.seed in (0, 1):
            (cell.experiment.run.path / "evals/countdown-n4-t1-step4.json").unlink()
        if cell.method == "dr_grpo" and cell.seed != 4:
            (cell.experiment.run.path / "evals/countdown-n4-t1-step4.json").unlink()
    for task in judge(board, cells).tasks:
        rows = {row.name: row for row in task.rows}
        assert rows["egpo"].from_baseline.num_seeds == 3
        assert rows["egpo"].from_all is None, "one seed shared with dr_grpo cannot be tested"
        assert rows["dr_grpo"].from_baseline is None
        assert rows["dr_grpo"].accuracy.low is None


def test_other_data_is_named_as_unfair(known):
    board, cells = known
    (cell, *_) = cells
    write_provenance(
        cell.experiment.run.provenance, Provenance(cell.seed, {"train": "b" * 64}, describe_launch(threads=1))
    )
    judgement = judge(board, cells)
    assert any("data train" in found for found in judgement.tasks[0].unfair)
    assert "Not a fair comparison: data train" in write_page(board, cells, judgement)[0].read_text()


def test_the_pages_have_the_numbers_and_load_nothing(known):
    board, cells = known
    judgement = judge(board, cells)
    write_json(judgement, board.results)
    markdown, html = (path.read_text() for path in write_page(board, cells, judgement))
    assert json.loads(board.results.read_text())["tasks"][0]["rows"][2]["from_all"]["finding"] == "better"
    for text in (
        "changes two things: no division by the standard deviation",
        "better than all baselines",
        "| egpo |",
        "1.000",
    ):
        assert text in markdown
    assert "better than all baselines" in html
    assert html.count("<svg") == 2
    rows = [line.split("|")[1].strip() for line in markdown.splitlines() if line.startswith("| ")]
    assert rows[:7] == ["method", "base (one-grpo-s0)", "egpo", "token_entropy", "dr_grpo", "grpo", "worse"], (
        "by accuracy"
    )
    assert html.count("<polyline") == 2 * 2 * len(board.methods)
    for outside in ("http://", "https://", "<script", "style="):
        assert outside not in html.replace('xmlns="http://www.w3.org/2000/svg"', "")
    figures = sorted(board.folder.glob("*.svg"))
    assert [path.name for path in figures] == ["board-one.svg", "board-two.svg"]
    for path in figures:
        assert ElementTree.fromstring(path.read_text()).get("role") == "img"


def test_compressed_runs_without_weights_give_the_same_judgement(known):
    """As runs are kept in docs/evidence."""
    board, cells = known
    whole = judge(board, cells)
    for path in [*board.runs.glob("*/*.jsonl"), *board.runs.glob("*/evals/*.jsonl")]:
        path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert judge(board, cells) == whole


def test_a_method_without_results_has_an_empty_row_with_the_reason(known):
    board, cells = known
    for cell in cells:
        if (cell.task, cell.method) == ("one", "egpo") or (cell.method == "worse" and cell.seed == 4):
            shutil.rmtree(cell.experiment.run.path)
    judgement = judge(board, cells, reasons={cell.name: "not run: GPU time" for cell in cells})
    markdown = write_page(board, cells, judgement)[0].read_text()
    assert "| egpo | – | – | – | – | – | – | – | – | – | not run: GPU time |" in markdown
    assert "| 4 of 5 |" in markdown
    assert "| one | egpo (0 1 2 3 4), worse (4) | not run: GPU time |" in markdown
    assert "7 runs have no result." in markdown


P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=8)


@given(P_VALUES)
def test_first_claims_alone_are_holms_method(values):
    adjusted = holm_in_pairs(dict(enumerate(values)), {}, len(values))
    assert [adjusted[place, 1] for place in range(len(values))] == holm(values)


@given(P_VALUES, st.data())
def test_a_second_claim_never_precedes_the_first_and_costs_the_others_nothing(values, data):
    second = {place: data.draw(st.floats(value, 1)) for place, value in enumerate(values)}
    with_second = holm_in_pairs(dict(enumerate(values)), second, len(values))
    alone = holm_in_pairs(dict(enumerate(values)), {}, len(values))
    for place, value in enumerate(values):
        assert with_second[place, 2] >= with_second[place, 1] >= min(1.0, value)
        assert with_second[place, 1] >= alone[place, 1]


def test_the_correction_keeps_the_level_under_any_pattern_of_true_claims():
    """Two claims at three places, each true or false; false first claims have p = 0, true ones are uniform."""
    rng = np.random.default_rng(0)
    for truth in itertools.product(["equal", "first", "both"], repeat=3):
        false_alarms = 0
        for _ in range(400):
            uniform = rng.random(3)
            first = {i: uniform[i] if truth[i] == "equal" else 0.0 for i in range(3)}
            second = {i: 0.0 if truth[i] == "both" else max(first[i], rng.random()) for i in range(3)}
            adjusted = holm_in_pairs(first, second, 3)
            wrong = [(i, 1) for i in range(3) if truth[i] == "equal"]
            wrong += [(i, 2) for i in range(3) if truth[i] != "both"]
            false_alarms += any(adjusted[claim] < 0.05 for claim in wrong)
        assert false_alarms / 400 < 0.09, truth
