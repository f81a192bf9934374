"""Adaptive entropy control: the paper's rule, TRL's sequence of coefficients, and a state that survives a stop."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.config import load_config
from egpo.controllers import CONTROLLERS, Control, Controller, controller_named
from egpo.errors import ConfigError, InputError

WORDS = ["model.path=egpo-tiny", "task.name=countdown"]
entropies = st.lists(st.floats(0, 1), min_size=1, max_size=30)


def run_through(entropies, **settings):
    """The weights that were applied, and the coefficients after each step."""
    state, weights, coefficients = {}, [], []
    for entropy in entropies:
        control = CONTROLLERS["adaptive_entropy"](state, {"actor/entropy": entropy}, **settings)
        state = json.loads(json.dumps(control.state))  # as a checkpoint would keep it
        weights.append(control.update["entropy_weight"])
        coefficients.append(state["coefficient"])
    return weights, coefficients


def trl_rule(entropies, target, delta, start, lowest, highest):
    """`GRPOTrainer._compute_loss` of TRL 1.16 with `use_adaptive_entropy`, line for line."""
    entropy_coef, last_world_entropy, applied, coefficients = start, float("inf"), [], []
    for world_entropy in entropies:
        applied.append(entropy_coef if last_world_entropy <= target else 0.0)
        if world_entropy <= target:
            entropy_coef = min(entropy_coef + delta, highest)
        else:
            entropy_coef = max(entropy_coef - delta, lowest)
        last_world_entropy = world_entropy
        coefficients.append(entropy_coef)
    return applied, coefficients


@given(entropies, st.floats(0.1, 0.9), st.floats(0.001, 0.3), st.floats(0, 1))
def test_the_coefficients_are_trls(values, target, delta, start):
    settings = {"target": target, "delta": delta, "start": start, "lowest": 0.0, "highest": 1.0}
    weights, coefficients = run_through(values, **settings)
    applied, expected = trl_rule(values, **settings)
    assert coefficients == expected
    # TRL asks whether the entropy of the step before was low, and the paper whether that of this step is.
    before = [start, *coefficients[:-1]]
    assert weights == [
        coefficient if value <= target else 0.0 for coefficient, value in zip(before, values, strict=True)
    ]
    assert applied[0] == 0.0


def test_the_weight_rises_below_the_target_and_is_0_above_it():
    weights, coefficients = run_through([0.1, 0.1, 0.1, 0.5, 0.5, 0.1, 0.2], target=0.2, delta=0.01)
    assert weights == pytest.approx([0, 0.01, 0.02, 0, 0, 0.01, 0.02])
    assert coefficients == pytest.approx([0.01, 0.02, 0.03, 0.02, 0.01, 0.02, 0.03])


@given(entropies)
def test_the_coefficient_stays_within_its_bounds(values):
    _, coefficients = run_through(values, target=0.5, delta=0.4, start=0.3, lowest=0.2, highest=0.7)
    assert all(0.2 <= value <= 0.7 for value in coefficients)


def update_of(*overrides):
    return load_config(overrides=[*WORDS, *overrides]).update


def test_its_settings_stand_in_the_recipe():
    chosen = update_of("update.controller=adaptive_entropy", "update.adaptive_entropy.target=1.5")
    assert chosen.settings_of_controller["target"] == 1.5
    assert update_of().settings_of_controller == {}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["update.controller=adaptive_entropi"], "did you mean `adaptive_entropy`"),
        (["update.controller=adaptive_entropy", "update.entropy_weight=0.1"], "sets it too"),
        (["update.adaptive_entropy.start=2.0"], "outside `lowest` 0 and `highest` 1"),
        (["update.adaptive_entropy.delta=0"], "greater than 0"),
        (["update.controller_settings.x=1"], "not used by the built-in controller `none`"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(overrides, message):
    with pytest.raises(ConfigError, match=message):
        update_of(*overrides)


def test_a_controller_sets_only_what_may_change_and_its_state_is_json():
    def returning(found):
        return Controller(lambda state, measured: found)

    with pytest.raises(InputError, match="sets `mini_batch`, which cannot change"):
        returning(Control({"mini_batch": 3}, {}))({}, {})
    with pytest.raises(InputError, match="is not JSON"):
        returning(Control({}, {"x": float("nan")}))({}, {})
    with pytest.raises(InputError, match="returned dict"):
        returning({})({}, {})


def test_what_a_controller_sets_is_checked_as_a_recipe_is():
    assert update_of().controlled({"clip_high": 0.4}).clip_high == 0.4
    with pytest.raises(ConfigError, match="`clip` is 3"):
        update_of().controlled({"clip": 3.0})


@pytest.mark.parametrize("name", ["no_such_module:f", "tests.controllers.test_adaptive_entropy:WORDS", "nope"])
def test_a_name_that_leads_nowhere_is_one_line(name):
    with pytest.raises(InputError, match="controller"):
        controller_named(name)
