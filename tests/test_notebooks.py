"""The notebooks run from top to bottom, are stored without output, and show an error of egpo in one line."""

import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks are executed in .venv")
NotebookClient = pytest.importorskip("nbclient").NotebookClient
CellExecutionError = pytest.importorskip("nbclient.exceptions").CellExecutionError

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples" / "notebooks").glob("*.ipynb"))


def executed(notebook, folder):
    """Execute a notebook in a folder. The cells are changed in place: they get their outputs."""
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.fixture(autouse=True)
def _own_folders(tmp_path_factory, monkeypatch):
    """Jupyter's files stay out of the user's home, and the kernel is that of this environment."""
    folder = tmp_path_factory.mktemp("jupyter")
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["first_steps", "reading_a_run", "your_own_task"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_holds_no_output(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_from_top_to_bottom(path, tmp_path):
    cells = executed(nbformat.read(path, as_version=4), tmp_path)
    assert all(cell.execution_count for cell in cells)
    assert (tmp_path / "runs").is_dir()


RECIPE = """\
import egpo
recipe = {"model.path": "egpo-tiny", "rollout": {"prompts": 2, "n": 2, "max_response_tokens": 8}, "steps": 1}
recipe["validation.every"] = 0

class Sums:
    def problems(self, split): return [egpo.Problem("1+1", (), "2")]
    def prompt(self, problem): return [{"role": "user", "content": problem.key}]
    def judge(self, problem, text): return egpo.Verdict(0.0, False, "wrong")
    def gold(self, problem): return "2"

class NoGold(Sums):
    gold = None

class NoPrompt(Sums):
    def prompt(self, problem): return problem.question

def watch(report):
    return report.metrics["rewrd"]
"""
MISTAKES = {
    'egpo.train(recipe, {"rollout.nn": 3}, task=Sums())': "ConfigError: override `rollout.nn=3`: unknown key `nn`; "
    "did you mean `n`?",
    "egpo.train(recipe, task=NoGold())": "InputError: task: the class `NoGold` has no method `gold`; add it: a task "
    "needs the methods problems, prompt, judge, gold (see docs/tasks.md)",
    "egpo.train(recipe, task=NoPrompt(), quiet=True)": "InputError: task __main__:NoPrompt: the task's `prompt` raised "
    "AttributeError: 'Problem' object has no attribute 'question' (the cell, line 15); correct `prompt` of the task",
    "egpo.train(recipe, task=Sums(), on_step=watch, quiet=True)": "EgpoError: on_step: it raised KeyError: 'rewrd' "
    "(the cell, line 18) after step 1; correct it, then continue with resume=True",
}


@pytest.mark.timeout(900)
def test_a_mistake_is_shown_in_one_line(tmp_path):
    """The kernel is started once: the cells of the mistakes may fail, and the others may not."""
    cells = [nbformat.v4.new_code_cell(RECIPE)]
    cells += [nbformat.v4.new_code_cell(code, metadata={"tags": ["raises-exception"]}) for code in MISTAKES]
    setup, *failed = executed(nbformat.v4.new_notebook(cells=cells), tmp_path)
    assert not setup.outputs
    shown = [[output.traceback for output in cell.outputs if output.output_type == "error"] for cell in failed]
    assert shown == [[[message]] for message in MISTAKES.values()]


def test_a_cell_that_fails_fails_the_notebook(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("import egpo; egpo.report()")])
    with pytest.raises(CellExecutionError, match="no run is given"):
        executed(notebook, tmp_path)
