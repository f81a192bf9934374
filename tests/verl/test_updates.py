"""The same batch and weights in, the same loss and gradient out: the embedded engine's update, and what verl logged.

`recorded/updates/<run>` has two steps of a run of verl 0.9.1 each (`record_updates.py` makes them). Updates that verl
makes while the tests run are in `test_updates_in_verl.py` and in the live tests.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from egpo.verl.dumps import read_record
from tests.verl.record_updates import FOLDER, RUNS
from tests.verl.updates import (
    FOLLOWING,
    SAME_WEIGHTS,
    Trainee,
    assert_same_steps,
    assert_same_update,
    differences,
    mini_batches_of,
    settings_of,
)

FLOAT32 = [name for name in RUNS if "bfloat16" not in name]


def steps_of(name):
    return [read_record(FOLDER / name / f"step_{step}.npz") for step in (1, 2)]


def logged_of(name):
    return json.loads((FOLDER / name / "logged.json").read_text())


@pytest.mark.parametrize("name", FLOAT32)
def test_two_steps_of_verl_have_the_loss_and_gradient_of_the_embedded_engine(name):
    assert_same_steps(steps_of(name), logged_of(name))


def test_in_bfloat16_they_agree_to_the_bound_of_its_rounding():
    assert_same_steps(steps_of("egpo_bfloat16"), logged_of("egpo_bfloat16"), dtype="bfloat16")


def curvature(trainee, recorded, step=2e-7):
    """Return the second difference of the log-probabilities by the first norm: `step` squared, and rounding."""
    weight = trainee.policy.model.model.layers[0].input_layernorm.weight
    found = []
    for _ in range(3):
        found.append(trainee.logp(recorded))
        with torch.no_grad():
            weight += step
    return float((found[0] - 2 * found[1] + found[2]).abs().max())


def test_the_reference_in_float64_rounds_nothing_to_float32():
    recorded = steps_of("egpo_calibrated")[0]
    exact = Trainee(dtype="float64")
    assert_same_update(exact.take(recorded, 1), logged_of("egpo_calibrated")[0], SAME_WEIGHTS)
    assert curvature(exact, recorded) < 1e-9
    assert curvature(Trainee(), recorded) > 1e-7


def test_the_runs_have_every_aggregation_a_kl_term_or_none_and_several_optimizer_steps():
    settings = {name: settings_of(steps_of(name)[0]).update for name in FLOAT32}
    assert {one.aggregation for one in settings.values()} == {"token_mean", "sequence_mean", "fixed_length"}
    assert {one.kl_estimator for one in settings.values() if one.kl} == {"k2", "k3"}
    assert not all(one.kl for one in settings.values())
    assert [name for name, one in settings.items() if one.entropy_weight] == ["grpo_drawn"]
    assert {name: len(mini_batches_of(steps_of(name)[0])) for name in FLOAT32} == {
        "grpo": 1, "grpo_drawn": 1, "egpo": 4, "egpo_calibrated": 1}  # fmt: skip
    assert {steps_of(name)[0].about["estimator"] for name in FLOAT32} == {"grpo", "egpo", "egpo_calibrated"}
    for name in FLOAT32:
        assert all(np.abs(one.advantage_BT).max() > 0.1 for one in steps_of(name)), name


ACTOR = "actor_rollout_ref.actor"


def with_setting(recorded, **changed):
    """The record, as if verl's actor had had other settings."""
    update = recorded.about["update"]
    actor = {**update[ACTOR], **changed}
    return replace(recorded, about={**recorded.about, "update": {**update, ACTOR: actor}})


OTHERS = [
    ("grpo", {"loss_agg_mode": "seq-mean-token-mean"}),
    ("egpo_calibrated", {"loss_agg_mode": "token-mean"}),
    ("egpo", {"ppo_mini_batch_size": 6}),
    ("grpo_drawn", {"entropy_coeff": 0.0}),
]


@pytest.mark.parametrize(("name", "changed"), OTHERS, ids=lambda one: one if isinstance(one, str) else "")
def test_an_update_with_another_setting_would_not_agree(name, changed):
    """A comparison that any update passes shows nothing."""
    ours = Trainee().take(with_setting(steps_of(name)[0], **changed), 1)
    found = differences(ours, logged_of(name)[0])
    assert max(found["loss"], found["grad_norm"]) > 1000 * SAME_WEIGHTS["loss"]


def test_advantages_without_the_entropy_would_not_agree():
    recorded = steps_of("egpo")[0]
    recorded.entropy_BT[:] = 0.0
    with pytest.raises(AssertionError):
        assert_same_update(Trainee().take(recorded, 1), logged_of("egpo")[0], SAME_WEIGHTS)


@pytest.mark.parametrize("name", ["egpo_calibrated", "grpo_drawn"])
def test_a_second_step_without_the_kl_term_would_not_agree(name):
    first, second = steps_of(name)
    trainee = Trainee()
    trainee.take(first, 1)
    found = differences(trainee.take(with_setting(second, use_kl_loss=False), 2), logged_of(name)[1])
    assert found["loss"] > 10 * FOLLOWING["loss"]
