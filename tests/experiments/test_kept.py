"""`egpo run --keep`: what is removed after the evaluation is not missed, and nothing is removed before it."""

import pytest
from typer.testing import CliRunner

from egpo.cli.main import app
from egpo.errors import InputError
from egpo.experiments.kept import missing_result, remove_surplus
from egpo.experiments.validate import load_experiments
from egpo.runs.removed import read_removed

pytestmark = pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
STAGES = ["prepare", "train", "eval", "report"]


@pytest.mark.parametrize("keep", ["weights", "results"])
def test_what_is_removed_is_not_missed(recipe, run_recipe, keep):
    (experiment,) = load_experiments([str(recipe)])
    run_recipe(only=["prepare", "train"])
    assert remove_surplus(experiment, keep) is None, "nothing goes before the evaluation"
    said = CliRunner().invoke(app, ["run", str(recipe), "--only", ",".join(STAGES), "--keep", keep])
    assert said.exit_code == 0, said.output
    run = experiment.run
    removed = read_removed(run.removed)
    assert f"removed {removed}" in " ".join(said.output.split())
    assert removed.num_bytes > 0
    assert not any((run.path / name).exists() for name in removed.files)
    assert experiment.trained_model.is_dir() == (keep == "weights")
    assert run.checkpoints.exists() == (keep == "weights")
    assert f"keep: {keep}" in run.report.read_text()
    assert missing_result(experiment) is None
    assert {line for line in run_recipe(only=STAGES) if ": skipped" not in line} <= {"merge: nothing to do"}
    resumed = CliRunner().invoke(app, ["train", str(recipe), "--resume"])
    assert isinstance(resumed.exception, InputError)
    assert f"by keep: {keep}" in str(resumed.exception)


def test_an_interrupted_removal_is_finished_and_weights_can_become_results(recipe, run_recipe):
    (experiment,) = load_experiments([str(recipe)])
    run_recipe(only=["prepare", "train", "eval"])
    tensors = next(experiment.run.checkpoints.rglob("resume.safetensors"))
    content = tensors.read_bytes()
    assert remove_surplus(experiment, "weights") is not None
    tensors.write_bytes(content)
    assert missing_result(experiment) is None
    assert remove_surplus(experiment, "weights") is None
    assert not tensors.exists()
    assert remove_surplus(experiment, "results") is not None
    assert not experiment.run.checkpoints.exists()
    assert missing_result(experiment) is None


def test_a_removed_model_cannot_be_evaluated_in_another_way(recipe, run_recipe):
    (experiment,) = load_experiments([str(recipe)])
    run_recipe(only=["prepare", "train", "eval"])
    remove_surplus(experiment, "results")
    with pytest.raises(Exception, match="the trained model is not there: removed the checkpoints"):
        run_recipe("eval.n=3", only=["eval"])


def test_an_unknown_word_is_one_clear_line(recipe):
    said = CliRunner().invoke(app, ["run", str(recipe), "--keep", "weight"])
    assert said.exit_code != 0
    assert "weights" in str(said.exception) + said.output
