"""Updates of verl's own training worker, and those of the embedded engine from the same weights.

One process computes all cases (`verl_worker.py`): a step with each of two recorded batches. The second step begins with
verl's weights and moments after the first, so that nothing adds up.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from egpo.verl.dumps import read_record
from tests.verl.updates import (
    BFLOAT16_CHANGE,
    BFLOAT16_GRADIENT,
    SAME_CHANGE,
    SAME_GRADIENT,
    TrainedState,
    Trainee,
    assert_same_update,
    bounds_of,
    distance,
    mini_batches_of,
)
from tests.verl.verl_worker import BFLOAT16 as IN_BFLOAT16
from tests.verl.verl_worker import run_cases

pytest.importorskip("verl")
pytestmark = [pytest.mark.verl, pytest.mark.timeout(600)]

RECORDED = Path(__file__).with_name("recorded")
ACTOR, TEMPERATURE = "actor_rollout_ref.actor", "actor_rollout_ref.rollout.temperature"
FAST = {f"{ACTOR}.optim.lr": 1e-4}
KL = {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_coef": 0.1}
CASES = {
    "token_mean": (FAST, ["grpo", "egpo"]),
    "sequence_mean_with_kl": (
        {**FAST, **KL, f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean"},
        ["egpo_calibrated", "egpo"],
    ),
    "several_optimizer_steps": (
        {
            **FAST,
            **KL,
            TEMPERATURE: 0.8,
            f"{ACTOR}.ppo_mini_batch_size": 2,
            f"{ACTOR}.kl_loss_type": "kl",
            f"{ACTOR}.entropy_coeff": 0.01,
            f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm",
            f"{ACTOR}.loss_scale_factor": 112,
        },
        ["token_entropy", "egpo_calibrated"],
    ),
    # A group of each batch has no sampled tokens: its environment could not start.
    "rows_without_tokens": (
        {**FAST, f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean"},
        ["grpo-episodes", "egpo-episodes"],
    ),
    "bfloat16": ({**FAST, **IN_BFLOAT16}, ["egpo", "egpo_calibrated"]),
}


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    paths = {
        name: (settings, [RECORDED / f"{batch}.npz" for batch in batches])
        for name, (settings, batches) in CASES.items()
    }
    return run_cases(tmp_path_factory.mktemp("updates"), paths)


def steps_of(name, computed):
    """The batches as verl would have recorded them, and what came out of each."""
    found = []
    for batch, step in zip(CASES[name][1], computed[name]["steps"], strict=True):
        recorded = read_record(RECORDED / f"{batch}.npz")
        rows = len(recorded.groups)
        about = {**recorded.about, "num_rows": rows, "update": computed[name]["settings"]}
        found.append((replace(recorded, logp_BT=step["logp_BT"].numpy(), row_B=np.arange(rows), about=about), step))
    return found


@pytest.mark.parametrize("name", CASES)
def test_from_the_same_weights_both_engines_take_the_same_step(name, computed):
    in_bfloat16 = name == "bfloat16"
    dtype = "bfloat16" if in_bfloat16 else "float32"
    trainee = Trainee(dtype=dtype)
    same_gradient = BFLOAT16_GRADIENT if in_bfloat16 else SAME_GRADIENT
    same_change = BFLOAT16_CHANGE if in_bfloat16 else SAME_CHANGE
    before = trainee.state()
    for place, (recorded, step) in enumerate(steps_of(name, computed)):
        if place:
            trainee.restore(before, recorded)
        ours = trainee.take(recorded, place + 1)
        assert_same_update(ours, step["metrics"], bounds_of(recorded, same_weights=True, dtype=dtype))
        num_steps = before.num_steps + len(mini_batches_of(recorded))
        after, own = TrainedState(step["weights"], step["exp_avg"], step["exp_avg_sq"], num_steps), trainee.state()
        assert own.num_steps == num_steps
        assert distance(own.exp_avg, after.exp_avg) < same_gradient
        assert distance(own.weights, after.weights, before.weights) < same_change
        before = after
