"""Updates of verl's own training worker, and those of the embedded engine from the same weights.

One process computes all cases (`verl_worker.py`): a step with each of two recorded batches. The second step begins with
verl's weights and moments after the first, so that nothing adds up.
"""

import pytest

from tests.verl.compare_updates import CASES, TARGET, compared, dtype_of, steps_of, verl_updates
from tests.verl.updates import (
    BFLOAT16_CHANGE,
    BFLOAT16_GRADIENT,
    SAME_CHANGE,
    SAME_GRADIENT,
    SAME_WEIGHTS,
    TrainedState,
    Trainee,
    assert_same_update,
    bounds_of,
    distance,
    mini_batches_of,
)

pytest.importorskip("verl")
pytestmark = [pytest.mark.verl, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    return verl_updates(tmp_path_factory.mktemp("updates"))


@pytest.mark.parametrize("name", CASES)
def test_from_the_same_weights_both_engines_take_the_same_step(name, computed):
    dtype = dtype_of(name)
    in_bfloat16 = dtype == "bfloat16"
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


def test_the_engines_are_apart_by_the_rounding_of_each(computed):
    """If both had an error in common, they would be nearer to each other than to float64."""
    rows = [one for one in compared("rows_without_tokens", computed, "cpu") if one["step"] == 1]
    found = {one["pair"]: one for one in rows}
    assert found["embedded, verl"]["advantage"] < TARGET
    pairs = ("embedded, verl", "embedded, float64", "verl, float64")
    apart, ours, verls = (found[f"{pair}; old logp of its own"] for pair in pairs)
    for one in (apart, ours, verls):
        assert one["loss"] < TARGET
        assert one["grad_norm"] < SAME_WEIGHTS["grad_norm"]
    assert max(ours["gradient"], verls["gradient"]) < min(SAME_GRADIENT, 1.5 * apart["gradient"])
