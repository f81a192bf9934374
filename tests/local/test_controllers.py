"""Controllers in a run: what they set is used, and a run that was stopped continues with the same bits."""

import pytest

from egpo.controllers import Control
from egpo.local.checkpoints.resume import export_policy, restore, snapshot
from egpo.local.step import step
from egpo.local.updates.optimizer import learning_rate
from tests.local.runs import contents, differing, run, write_recipe
from tests.local.test_step import opened

pytestmark = pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
ADAPTIVE = [
    "update.controller=adaptive_entropy",
    "update.adaptive_entropy.target=4.76",  # between the entropies of the steps: the weight comes and goes
    "update.adaptive_entropy.delta=0.3",
    "update.adaptive_entropy.highest=9.0",
]


def halving(state, measured, *, factor=0.5):
    """A plain function: the learning rate falls in every step."""
    times = state.get("times", 0)
    return Control({"lr": 1e-3 * factor**times}, {"times": times + 1}, {"controller/times": float(times)})


def test_the_weight_follows_the_entropy_that_was_measured(model_folder):
    run_of_steps = opened(model_folder, *ADAPTIVE, "update.adaptive_entropy.target=9.0")
    weights = [step(run_of_steps, number).metrics for number in range(3)]
    assert [metrics["actor/entropy_weight"] for metrics in weights] == pytest.approx([0.0, 0.3, 0.6])
    assert [metrics["controller/entropy_coefficient"] for metrics in weights] == pytest.approx([0.0, 0.3, 0.6])
    assert run_of_steps.control_state == {"coefficient": pytest.approx(0.9)}
    high = step(opened(model_folder, *ADAPTIVE, "update.adaptive_entropy.target=0.01"), 0).metrics
    assert high["actor/entropy_weight"] == 0.0


def test_a_controller_of_a_users_own(model_folder):
    words = ["update.controller=tests.local.test_controllers:halving", "update.controller_settings.factor=0.1"]
    run_of_steps = opened(model_folder, *words)
    rates = [step(run_of_steps, number).metrics["actor/lr"] for number in range(3)]
    assert rates == pytest.approx([1e-3, 1e-4, 1e-5])
    assert learning_rate(run_of_steps.config.update, 0, 1) == 1e-3  # the recipe's own is not changed


def test_without_a_controller_there_is_no_state_and_no_metric(model_folder):
    run_of_steps = opened(model_folder)
    metrics = step(run_of_steps, 0).metrics
    assert run_of_steps.control_state == {}
    assert "controller" not in snapshot(run_of_steps, 1, None).state
    assert not [name for name in metrics if "entropy_weight" in name or name.startswith("controller/")]


def test_the_step_after_a_restore_is_the_step_that_would_have_come(model_folder, tmp_path):
    one = opened(model_folder, *ADAPTIVE, "update.adaptive_entropy.target=9.0")
    for number in range(2):
        step(one, number)
    saved = snapshot(one, 2, None)
    saved = type(saved)(2, {name: tensor.clone() for name, tensor in saved.tensors.items()}, saved.state)
    export_policy(one.policy, tmp_path / "model")
    expected = step(one, 2).metrics
    other = opened(model_folder, *ADAPTIVE, "update.adaptive_entropy.target=9.0")
    restore(other, saved, tmp_path / "model")
    assert step(other, 2).metrics == expected
    assert expected["actor/entropy_weight"] == pytest.approx(0.6)


@pytest.mark.timeout(300)
def test_a_run_that_is_stopped_and_resumed_ends_in_the_same_bits(model_folder, tmp_path):
    recipe = write_recipe(tmp_path / "recipe.yaml", model_folder())
    words = [*ADAPTIVE, "update.schedule=constant", "validation.every=0"]
    whole = run(recipe, "runs=whole", "steps=6", *words, cwd=tmp_path)
    assert whole.code == 0, whole.err
    for steps, resume in (("steps=4", []), ("steps=6", ["--resume"])):
        part = run(recipe, "runs=stopped", steps, *words, *resume, cwd=tmp_path)
        assert part.code == 0, part.err
    expected, found = contents(tmp_path / "whole" / "tiny"), contents(tmp_path / "stopped" / "tiny")
    metrics = (tmp_path / "whole" / "tiny" / "metrics.jsonl").read_text()
    assert metrics.count('"actor/entropy_weight": 0.0') < 6, "the weight never acted"
    # The shorter run ended at step 4, and wrote that step's rollouts as its last.
    assert differing(expected, found) == []
