"""Each mistake names the fault, the place and the fix."""

import numpy as np
import pytest
import torch

from egpo.advantages import ESTIMATORS, Signals, egpo, egpo_calibrated, estimator_named, explain
from egpo.errors import InputError
from tests.advantages.batches import called

GOOD = Signals([1.0, 0.0], [0, 0], entropy_B=[0.5, 0.5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reward_B": [1.0, float("nan")], "group_B": [0, 0]}, "1 of 2 rewards are not finite; row 1 is nan"),
        ({"reward_B": [float("inf"), 1.0], "group_B": [0, 0]}, "row 0 is inf"),
        ({"reward_B": [1.0, 0.0], "group_B": [0]}, r"group_B has shape \(1,\) and reward_B \(2,\)"),
        ({"reward_B": [1.0], "group_B": [0], "entropy_B": [0.1, 0.2]}, "entropy_B has shape"),
        ({"reward_B": [[1.0]], "group_B": [0]}, "reward_B has 2 dimensions"),
        ({"reward_B": ["one"], "group_B": [0]}, "reward_B is not a list of numbers"),
        ({"reward_B": [1.0, 0.0], "group_B": torch.tensor([0.5, 0.5])}, "group_B has dtype torch.float32"),
        ({"reward_B": [1.0, 0.0], "group_B": np.array([0.5, 0.5])}, "group_B has floating-point ids"),
        ({"reward_B": [1.0, 0.0], "group_B": [float("nan"), 1]}, "group_B has floating-point ids"),
        ({"reward_B": [1j, 0.0], "group_B": [0, 0]}, "reward_B contains complex numbers"),
        ({"reward_B": [1.0, 0.0], "group_B": [0, 0], "correct_B": [0.5, 1]}, "correct_B has values other than 0 and 1"),
        (
            {"reward_B": [1.0, 0.0], "group_B": [0, 0], "correct_B": [float("nan"), 1]},
            "correct_B has values other",
        ),
        ({"reward_B": [1.0, 0.0], "group_B": [[], []]}, "not hashable"),
        ({"reward_B": [1.0, 0.0], "group_B": [{}, {}]}, "not hashable"),
    ],
)
def test_signals_refuse(arguments, message):
    with pytest.raises(InputError, match=message):
        Signals(**arguments)


def test_an_unknown_estimator_is_named_with_the_nearest():
    with pytest.raises(InputError, match=r"unknown estimator `egop`; did you mean `egpo`\?"):
        estimator_named("egop")
    with pytest.raises(InputError, match="choose from `canon`, `edge`, `egpo`, `egpo_calibrated`, `grpo`"):
        explain("ppo", GOOD)


@pytest.mark.parametrize("name", sorted(name for name, row in ESTIMATORS.items() if row.segment))
def test_missing_entropy_is_named(name):
    with pytest.raises(InputError, match=f"estimator `{name}`: `entropy_B` is missing"):
        ESTIMATORS[name](Signals([1.0, 0.0], [0, 0]))


def test_missing_nll_and_missing_correctness_are_named():
    with pytest.raises(InputError, match="`nll_B` is missing"):
        egpo_calibrated(GOOD, measure="nll")
    with pytest.raises(InputError, match="`correct_B` is missing, which `sides=asymmetric` needs"):
        egpo_calibrated(GOOD, sides="asymmetric")
    with pytest.raises(InputError, match="`correct_B` is missing, which `recover` needs"):
        egpo_calibrated(GOOD, recover=1.0)
    for name in ("gtpo", "grpo_s"):
        with pytest.raises(InputError, match=f"estimator `{name}`: `correct_B` is missing"):
            called(name, GOOD)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": -2.0}, "`alpha` is -2; it must be greater than 1"),
        ({"alpha": 1.0}, "`alpha` is 1"),
        ({"alpha": float("nan")}, "`alpha` is nan"),
        ({"lam": -0.1}, "`lam` is -0.1; it must be greater than 0"),
        ({"lam": 2.0}, "`lam` 2 is not less than `alpha` 2"),
        ({"form": "clip"}, "`form` is `clip`"),
    ],
)
def test_egpo_refuses_settings(settings, message):
    with pytest.raises(InputError, match=message):
        egpo(GOOD, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lambda_min": 1.5}, "`lambda_min` is 1.5"),
        ({"lambda_min": -0.5}, "`lambda_min` is -0.5"),
        ({"lambda_max": 0.5}, "`lambda_max` is 0.5"),
        ({"lambda_max": float("inf")}, "`lambda_max` is inf"),
        ({"eps": 0.0}, "`eps` is 0"),
        ({"eps": float("inf")}, "`eps` is inf"),
        ({"sides": "left"}, "`sides` is `left`"),
        ({"measure": "entrpy"}, "`measure` is `entrpy`; did you mean `entropy`"),
    ],
)
def test_egpo_calibrated_refuses_settings(settings, message):
    with pytest.raises(InputError, match=message):
        egpo_calibrated(GOOD, **settings)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("qae", {"quantile": 1.0}, "`quantile` is 1; it must be less than 1"),
        ("qae", {"quantile": 0.0}, "`quantile` is 0; it must be greater than 0"),
        ("canon", {"mu": 1.5}, "`mu` is 1.5"),
        ("pass_at_k", {"k": 0}, "`k` is 0"),
        ("pass_at_k", {"k": 2.5}, "`k` is 2.5"),
        ("edge", {"mean_over": "all"}, "`mean_over` is `all`"),
        ("edge", {"eps": 0.0}, "`eps` is 0"),
        ("grpo_s", {"alpha2": -0.1}, "`alpha2` is -0.1"),
        ("gtpo", {"compare": "all"}, "`compare` is `all`"),
        ("high_entropy", {"rho": 0.0}, "`rho` is 0; it must be greater than 0"),
        ("high_entropy", {"rho": 1.1}, "`rho` is 1.1; it must be less than or equal to 1"),
        ("token_entropy", {"kappa": 1.0}, "`kappa` is 1; it must be greater than 1"),
        ("egpo_calibrated", {"recover": -1.0}, "`recover` is -1"),
    ],
)
def test_other_settings_are_refused(name, settings, message):
    with pytest.raises(InputError, match=f"estimator `{name}`: {message}"):
        called(name, GOOD, **settings)


def test_every_fault_of_the_settings_is_reported_at_once():
    with pytest.raises(InputError) as caught:
        egpo(GOOD, alpha=0.5, lam=-1.0, form="x")
    assert len(caught.value.faults) == 3
