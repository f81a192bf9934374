"""The board file: what it may hold, and its faults, all at once."""

import re
from pathlib import Path

import pytest

from egpo.boards.board_file import SHARED_KEYS, load_board
from egpo.boards.cells import load_cells, require_fit
from egpo.errors import ConfigError, InputError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "board.md"

BOARD = """
name: tiny
tasks:
  countdown: {recipe: countdown_tiny, set: {steps: 2}}
  calls: {recipe: tool_calls_tiny_egpo}
methods: [grpo, gspo, {name: mine, set: {update.lr: 1e-4}, about: Faster., changes: [a, b]}]
seeds: [0, 3]
baselines: [gspo]
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text):
        path = tmp_path / "board.yaml"
        path.write_text(text)
        return path

    return write


def faults(path):
    with pytest.raises(ConfigError) as raised:
        load_cells(load_board(path))
    return [str(fault) for fault in raised.value.faults]


def test_a_board_has_every_cell_in_the_order_of_its_seeds(written):
    board = load_board(written(BOARD))
    assert (str(board.folder), board.baseline, board.baselines) == ("boards/tiny", "grpo", ("grpo", "gspo"))
    assert (board.methods["mine"].about, board.methods["mine"].changes) == ("Faster.", ("a", "b"))
    cells = load_cells(board)
    assert len(cells) == len({cell.experiment.run.path for cell in cells}) == 12
    assert [cell.seed for cell in cells] == [0] * 6 + [3] * 6
    for cell in cells:
        config = cell.experiment.config
        assert (config.seed, config.name) == (cell.seed, f"{cell.task}-{cell.method}-s{cell.seed}")
        assert config.steps == (2 if cell.task == "countdown" else 30)
        assert config.update.loss == ("gspo" if cell.method == "gspo" else "clipped")
        assert config.update.lr == (1e-4 if cell.method == "mine" else 3e-5)


def test_methods_start_from_grpo_whatever_estimator_the_recipe_has(written):
    cells = load_cells(load_board(written(BOARD)))
    assert {cell.experiment.config.algorithm.estimator for cell in cells} == {"grpo"}


def test_all_faults_of_a_file_are_reported_at_once(written):
    text = """
name: a b
foldr: x
tasks:
  countdown: {recipe: countdown_tiny, sett: {steps: 2}}
  other: countdown_tiny
  third: {recipe: countdown_tiny, set: {seed: 1}}
methods: [grpo, egop, grpo, {name: mine, set: {eval.n: 3}}, {name: grpo, set: {update.lr: 1}}, {set: {}}]
seeds: [0, 0]
baseline: gspo
"""
    found = "\n".join(faults(written(text)))
    for part in (
        "2: `name` is 'a b'",
        "3: unknown key `foldr`; did you mean `folder`?",
        "[tasks.countdown]: unknown key `sett`; did you mean `set`?",
        "`countdown_tiny` is not an entry of `tasks`",
        "`set` has the key `seed`",
        "unknown method `egop`; did you mean `egpo`?",
        "the method `grpo` is listed twice",
        "`set` has the key `eval.n`",
        "`grpo` is a method of the package",
        "`name` is missing",
        "a seed is listed twice",
        "`gspo` is not among the methods of the board",
    ):
        assert part in found, part


def test_all_faults_of_recipes_and_methods_are_reported_at_once(written):
    text = """
name: tiny
tasks:
  wrong: {recipe: countdown_tinny}
  words: {recipe: countdown_tiny, set: {steps: two}}
  right: {recipe: countdown_tiny}
methods:
  - grpo
  - {name: absent, set: {algorithm.estimator: "no_such_module:f"}}
  - {name: typo, set: {algorithm.estimatr: grpo, update.lr: -1}}
  - {name: loss, set: {update.loss: "no_such_module:f"}}
seeds: [0]
"""
    found = "\n".join(faults(written(text)))
    for part in (
        "task `wrong`: countdown_tinny: no such file; did you mean `countdown_tiny`",
        'task `words`: override `steps="two"`',
        "task `right`, method `absent`: estimator no_such_module:f: there is no module",
        'method `typo`: override `algorithm.estimatr="grpo"`: unknown key `estimatr`; did you mean `estimator`?',
        "method `typo`: override `update.lr=-1`",
        "method `loss`: loss form no_such_module:f: there is no module",
    ):
        assert part in found, part


def test_what_the_engine_lacks_is_reported_for_every_method(written):
    """verl's loss cannot drop groups."""
    text = """
name: tiny
tasks: {countdown: {recipe: countdown_tiny, set: {engine: verl, verl.gpus: 1}}}
methods: [grpo, {name: drop, set: {algorithm.constant_groups: drop}}, {name: line, set: {update.schedule: linear}}]
seeds: [0]
"""
    found = faults(written(text))
    assert len(found) == 2
    assert "method `drop`" in found[0]
    assert "method `line`" in found[1]


def test_a_method_that_changes_the_data_is_refused(written):
    text = BOARD.replace("update.lr: 1e-4", "task.settings.test: 32")
    text = text.replace("  calls: {recipe: tool_calls_tiny_egpo}\n", "")
    board = load_board(written(text))
    with pytest.raises(ConfigError, match=r"method `mine`: its data differs from that of `grpo`"):
        require_fit(board, load_cells(board))


@pytest.mark.parametrize("key", SHARED_KEYS)
def test_what_all_methods_share_cannot_be_set_by_one(key, written):
    text = BOARD.replace("update.lr: 1e-4", f"{key}: 1")
    assert any(f"`set` has the key `{key}`" in fault for fault in faults(written(text)))


@pytest.mark.parametrize("text", ["", "- a", "name: [", "tasks: 3\nmethods: 4\nseeds: 5\nname: 6\n"])
def test_a_file_that_is_no_board_is_one_clear_error(text, written):
    with pytest.raises(InputError):
        load_board(written(text))
    with pytest.raises(InputError, match="no such board file"):
        load_board(written(text).with_name("other.yaml"))


def test_the_board_of_the_page_is_valid(written, tmp_path):
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "my_module.py").write_text("def mine(signals):\n    return signals.reward_B\n")
    board = load_board(written(text))
    assert len(load_cells(board)) == 2 * 5 * 5


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "boards").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_boards_of_the_examples_can_be_run(path):
    board = load_board(path)
    cells = load_cells(board)
    assert len(cells) == len(board.tasks) * len(board.methods) * len(board.seeds) >= 66


def test_a_controller_that_does_not_exist_is_found_before_the_first_run(tmp_path):
    path = tmp_path / "board.yaml"
    mine = '{name: mine, set: {update.controller: "no_such_module:mine"}}'
    path.write_text(f"name: x\ntasks: {{a: {{recipe: countdown_tiny}}}}\nmethods: [grpo, {mine}]\nseeds: [0, 1]\n")
    with pytest.raises(ConfigError, match="there is no module `no_such_module`"):
        load_cells(load_board(path))
