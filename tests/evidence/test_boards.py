"""Boards as evidence: small, recomputed by the code of `egpo board --page`, and held to the page byte by byte."""

import json
import shutil
from dataclasses import asdict

import pytest

from egpo.boards.board_file import load_board
from egpo.boards.cells import SELECTION, keep_board_file, load_cells
from egpo.boards.judgement import judge
from egpo.boards.stored_board import read_holes, read_stored_board
from egpo.errors import InputError
from egpo.experiments.pipeline import run_each
from egpo.experiments.screen import plain_screen
from tests.evidence.conftest import COMMIT, RECIPE, write_empty_pages
from website.evidence.__main__ import DOCS, END, outdated, write
from website.evidence.boards import BOARDS, board_names, board_part, strip_board
from website.evidence.sittings import append_sitting, sitting_of
from website.evidence.stripping import pack, unpack

BOARD = """
name: mini
folder: mini
tasks: {{countdown: {{recipe: {recipe}}}}}
methods: [grpo, egpo, random_reward, {{name: mine, set: {{algorithm.estimator: "mini_estimators:plain"}}}}]
seeds: [0, 1]
"""
MINE = "def plain(signals):\n    return signals.reward_B - signals.reward_B.mean()\n"
NOT_RUN = "not run: GPU time"
LIMIT_KB_A_RUN = 40


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """A real board of egpo-tiny, of which the control is never started and one run is not finished."""
    folder = tmp_path_factory.mktemp("board")
    (folder / "mini_estimators.py").write_text(MINE)
    recipe = RECIPE.format(folder=folder, name="mini", estimator="grpo", train=12)
    (folder / "recipe.yaml").write_text(recipe.replace("cold_start: {problems: 8, thinking: true}\n", ""))
    (folder / "board.yaml").write_text(BOARD.format(recipe=folder / "recipe.yaml"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("warnings.warn", lambda *args, **kwargs: None)
        found = load_board(folder / "board.yaml")
        cells = load_cells(found)
        started = [cell.experiment for cell in cells if cell.method != "random_reward"]
        run_each(started, SELECTION, plain_screen(lambda text: None))
        keep_board_file(found)
        metrics = found.runs / "countdown-mine-s1" / "metrics.jsonl"
        metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
        shutil.rmtree(metrics.with_name("checkpoints"))
        evaluations = (found.runs / "countdown-mine-s1" / "evals").glob("*step2.json")
        for path in evaluations:
            path.unlink()
        yield folder, judge(found, cells)


@pytest.fixture
def stored(board, tmp_path):
    """A folder like docs/ with this board as evidence."""
    docs = tmp_path / "docs"
    write_empty_pages(docs)
    pack(strip_board(board[0] / "mini", not_run=NOT_RUN).files, tmp_path / "board.tar.gz")
    names = unpack(tmp_path / "board.tar.gz", docs / "evidence")
    home = docs / "evidence" / BOARDS / "mini"
    names = [name.removeprefix(f"{BOARDS}/mini/") for name in names]
    append_sitting(home, sitting_of(home, names, COMMIT, 1, 600), "egpo board mini.yaml")
    return docs


def test_the_stored_board_gives_the_same_judgement_as_its_runs(board, stored):
    whole = asdict(board[1])
    kept = asdict(read_stored_board(stored / "evidence" / BOARDS / "mini").judge())
    reasons = {hole["cell"]: hole.pop("reason") for hole in kept["holes"]}
    assert reasons == {
        "countdown-random_reward-s0": NOT_RUN,
        "countdown-random_reward-s1": NOT_RUN,
        "countdown-mine-s1": "trained to step 1 of 2",
    }
    for hole in whole["holes"]:
        hole.pop("reason")
    assert kept == whole
    assert len(kept["tasks"][0]["before"]) == 1, "stored once for all runs"


def test_the_page_is_computed_and_a_difference_is_found(stored):
    page = stored / "board.md"
    assert outdated(stored) == [page, stored / "images" / "board_mini-countdown.svg"]
    assert set(write(stored)) == {page, stored / "images" / "board_mini-countdown.svg"}
    assert outdated(stored) == []
    text = page.read_text()
    assert text.endswith(f"{END}\nThe rest.\n")
    assert "### mini" in text
    assert "#### countdown" in text
    assert f"| random_reward | {'– | ' * 7}{NOT_RUN} |" in text
    assert "![learning curves of countdown](images/board_mini-countdown.svg)" in text
    page.write_text(text.replace("| egpo |", "| egpo  |"))
    assert outdated(stored) == [page]
    (stored / "images" / "board_gone-countdown.svg").write_text("")
    assert stored / "images" / "board_gone-countdown.svg" in outdated(stored)


def test_a_run_is_small_and_names_no_machine(board, stored):
    home = stored / "evidence" / BOARDS / "mini"
    for run in (home / "runs").iterdir():
        assert sum(path.stat().st_size for path in run.rglob("*") if path.is_file()) < LIMIT_KB_A_RUN * 1000
    files = [path for path in home.rglob("*") if path.is_file()]
    assert not [path for path in files if path.suffix == ".safetensors" or "rollouts" in path.parts]
    assert not [path for path in files if path.suffix != ".gz" and str(board[0]) in path.read_text()]
    assert len(list(home.glob("before_training/countdown/*.json"))) == 2


def test_changed_outcomes_strangers_and_bad_holes_are_refused(stored):
    home = stored / "evidence" / BOARDS / "mini"
    (home / "holes.yaml").write_text("not_started: 3\n")
    with pytest.raises(InputError, match="not_started"):
        read_holes(home / "holes.yaml")
    (home / "holes.yaml").unlink()
    (home / "runs" / "other").mkdir()
    (home / "runs" / "other" / "config.yaml").write_text("steps: 2\n")
    with pytest.raises(InputError, match="the run other is not of this board"):
        board_part(home)


def test_a_failure_keeps_its_reason(board, tmp_path):
    results = board[0] / "mini" / "board.json"
    hole = {"cell": "countdown-random_reward-s0", "reason": "ended with code 1: no memory", "failed": True}
    results.write_text(json.dumps({"holes": [hole]}))
    try:
        pack(strip_board(board[0] / "mini").files, tmp_path / "board.tar.gz")
    finally:
        results.unlink()
    unpack(tmp_path / "board.tar.gz", tmp_path / "evidence")
    holes = read_stored_board(tmp_path / "evidence" / BOARDS / "mini").judge().holes
    assert [(one.reason, one.failed) for one in holes if one.cell == hole["cell"]] == [(hole["reason"], True)]


def test_the_committed_boards_are_small():
    for name in board_names(DOCS / "evidence"):
        files = [path for path in (DOCS / "evidence" / BOARDS / name).rglob("*") if path.is_file()]
        runs = {path.parts[-2] for path in files if path.name == "provenance.json"}
        assert sum(path.stat().st_size for path in files) < LIMIT_KB_A_RUN * 1000 * len(runs)
