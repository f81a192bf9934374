"""What two runs must share so that one may go on from the other's checkpoint, and what is forgotten when it does."""

import pytest

from egpo.config import load_config
from egpo.local.checkpoints.resume import config_identity, restore, snapshot
from egpo.local.step import step
from egpo.local.training.rl_session import open_seeded
from egpo.runs.folder import RunFolder
from egpo.runs.ledger import NOTHING_YET, rewind
from egpo.runs.metrics import MetricStream, read_metrics
from tests.local.runs import write_recipe

pytestmark = pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")


@pytest.fixture
def config(model_folder, tmp_path):
    recipe = write_recipe(tmp_path / "recipe.yaml", model_folder())
    return lambda *overrides: load_config(recipe, overrides)


@pytest.mark.parametrize("override", ["name=x", "runs=x", "checkpoints.every=1", "watch.rollouts_every=1"])
def test_what_changes_no_figure_may_differ(config, override):
    assert config_identity(config(override)) == config_identity(config())


@pytest.mark.parametrize(
    "override", ["seed=1", "update.lr=2e-3", "update.micro_tokens=1", "validation.every=1", "rollout.n=2", "steps=9"]
)
def test_what_changes_a_figure_may_not(config, override):
    assert config_identity(config(override)) != config_identity(config())


def test_the_number_of_steps_matters_where_the_schedule_knows_it(config):
    constant = "update.schedule=constant"
    assert config_identity(config(constant, "steps=9")) == config_identity(config(constant))


def test_a_step_after_a_restore_is_the_step_that_would_have_come(config, tmp_path):
    from egpo.local.checkpoints.resume import export_policy

    one = open_seeded(config())
    step(one, 0)
    saved = snapshot(one, 1, None)
    saved = type(saved)(1, {name: tensor.clone() for name, tensor in saved.tensors.items()}, saved.state)
    export_policy(one.policy, tmp_path / "model")
    expected = step(one, 1).metrics
    other = open_seeded(config())
    restore(other, saved, tmp_path / "model")
    assert step(other, 1).metrics == expected


def test_what_a_run_has_learnt_about_its_data_and_its_memory_comes_back(config, tmp_path):
    from egpo.local.checkpoints.resume import export_policy

    one = open_seeded(config())
    one.budget.tokens = 77  # halved, say
    one.stream.take(3)
    one.stream.num_left_out = 2
    export_policy(one.policy, tmp_path / "model")
    other = open_seeded(config())
    restore(other, snapshot(one, 1, None), tmp_path / "model")
    assert other.budget.tokens == 77
    assert other.stream.num_left_out == 2
    assert other.stream.take(2) == one.stream.take(2)


def test_later_steps_are_forgotten(tmp_path):
    folder = RunFolder(tmp_path)
    folder.rollouts.mkdir()
    for number in range(4):
        MetricStream(folder.metrics).append(number, {"x": 1.0})
        MetricStream(folder.timings).append(number, {"s": 1.0})
        folder.rollouts_of(number).write_text("")
    rewind(folder, 2)
    assert [line["step"] for line in read_metrics(folder.metrics)] == [0, 1, 2]
    assert [line["step"] for line in read_metrics(folder.timings)] == [0, 1, 2]
    assert sorted(path.name for path in folder.rollouts.iterdir()) == ["step_0.jsonl", "step_1.jsonl", "step_2.jsonl"]
    rewind(folder, NOTHING_YET)
    assert folder.metrics.read_text() == ""
