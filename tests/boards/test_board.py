"""A board from end to end: real runs of egpo-tiny, with an estimator and a loss form from outside the package."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from egpo.boards.board_file import load_board
from egpo.boards.cells import load_cells, missing, require_fit, run_cells
from egpo.boards.judgement import judge
from egpo.experiments.screen import plain_screen
from egpo.fingerprints import unsealed
from tests.experiments.conftest import recipe  # noqa: F401  (a fixture)
from tests.local.conftest import model_folder  # noqa: F401  (a fixture)

pytestmark = pytest.mark.timeout(1200)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1", "CI": "1"}
MINE = '''
"""An estimator and a loss form of one's own, and one that fails."""
import torch


def tempered(signals, *, strength=0.5):
    """The reward less the group's mean, with the sign of it and the square root of its size."""
    groups, rewards = list(map(str, signals.group_B)), signals.reward_B.tolist()
    means = []
    for group in groups:
        own = [reward for reward, other in zip(rewards, groups) if other == group]
        means.append(sum(own) / len(own))
    centred = signals.reward_B - torch.tensor(means)
    return centred.sign() * centred.abs() ** strength


def unclipped(tokens, clip):
    """REINFORCE with the ratio, and no clip."""
    return -tokens.advantage_M * (tokens.logp_M - tokens.old_logp_M).exp()


def failing(signals):
    raise RuntimeError("this estimator fails")
'''
BOARD = """
name: tiny
tasks:
  countdown:
    recipe: countdown_tiny
    set: {steps: 2, rollout.prompts: 2, rollout.n: 4, eval.problems: 8, eval.n: 2, eval.greedy: false,
          validation.every: 0, rollout.max_response_tokens: 48, model.device: cpu}
methods:
  - grpo
  - {name: mine, set: {algorithm.estimator: "mine:tempered", update.loss: "mine:unclipped"},
     changes: [square root of the advantage, no clip]}
seeds: [0, 1]
parallel: 2
keep: results
"""


def egpo_board(folder, *words):
    """Runs the command in a folder with the board file and the module."""
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(MINE)
    (folder / "board.yaml").write_text(BOARD)
    command = [sys.executable, "-m", "egpo", "board", "board.yaml", *words]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=1000)


def without_clock(folder):
    """The results of a board, less the seconds that its runs took."""
    value = unsealed(json.loads((folder / "boards/tiny/board.json").read_text()))
    for task in value["tasks"]:
        for row in task["rows"]:
            assert row.pop("seconds") > 0
    return value


def test_a_board_runs_is_skipped_and_gives_the_same_numbers_again(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    planned = egpo_board(one, "--plan")
    assert planned.returncode == 0, planned.stderr
    assert "4 of 4 runs are missing (-: not started)" in planned.stdout
    assert not (one / "boards").exists()
    for folder in (one, two):
        done = egpo_board(folder)
        assert done.returncode == 0, done.stderr
        assert "tiny: 0 of 4 runs are done" in done.stdout
    assert without_clock(one) == without_clock(two)
    assert (one / "boards/tiny/board.yaml").read_text() == BOARD
    assert not (one / "boards/tiny/runs/countdown-grpo-s0/checkpoints").exists(), "keep: results"
    assert "by keep: results" in (one / "boards/tiny/runs/countdown-grpo-s0/report.html").read_text()
    (task,) = without_clock(one)["tasks"]
    assert [row["name"] for row in task["rows"]] == ["grpo", "mine"]
    assert task["rows"][1]["from_baseline"]["num_seeds"] == 2
    assert (task["unfair"], task["num_problems"], len(task["before"])) == ([], 8, 1)
    page = (one / "boards/tiny/board.md").read_text()
    assert "changes two things: square root of the advantage, no clip" in page
    assert "base (egpo-tiny)" in page
    written = (one / "boards/tiny/board.html").read_bytes()
    again = egpo_board(one)
    assert "tiny: 4 of 4 runs are done" in again.stdout
    assert (one / "boards/tiny/board.html").read_bytes() == written
    assert egpo_board(one, "--plan").stdout.count("done") == 4


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
def test_a_failed_run_is_a_hole_and_the_others_go_on(recipe, tmp_path):  # noqa: F811
    (tmp_path / "mine.py").write_text(MINE)
    path = tmp_path / "board.yaml"
    path.write_text(f"""
name: holes
tasks: {{countdown: {{recipe: {recipe}}}}}
methods: [grpo, {{name: failing, set: {{algorithm.estimator: "mine:failing"}}}}]
seeds: [0]
""")
    board = load_board(path)
    cells = load_cells(board)
    require_fit(board, cells)
    failures = run_cells(board, cells, plain_screen(lambda line: None))
    assert list(failures) == ["countdown-failing-s0"]
    assert "this estimator fails" in failures["countdown-failing-s0"]
    judgement = judge(board, cells, failures)
    (hole,) = judgement.holes
    assert (hole.cell, hole.failed) == ("countdown-failing-s0", True)
    assert [row.name for row in judgement.tasks[0].rows] == ["grpo"]
    assert [missing(cell) is None for cell in cells] == [True, False]
