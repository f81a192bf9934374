"""What a stock verl command may say about our estimators, in today's words and in older ones."""

import pytest

from egpo.errors import ConfigError
from egpo.verl.settings import read_settings

STOCK = {"adv_estimator": "grpo", "gamma": 1.0, "lam": 1.0, "norm_adv_by_std_in_grpo": True, "rollout_correction": {}}


def refused(**algorithm):
    with pytest.raises(ConfigError) as caught:
        read_settings({**STOCK, **algorithm})
    return str(caught.value)


def test_a_stock_run_asks_for_nothing_of_ours():
    settings = read_settings(STOCK)
    assert (settings.asked, settings.ours, settings.segment) == (False, False, None)


def test_defaults_are_those_of_recipes():
    egpo = read_settings({**STOCK, "adv_estimator": "egpo"})
    assert (egpo.ours, egpo.segment, egpo.tags) == (True, "thinking", ("<think>", "</think>"))
    assert egpo.arguments == {"normalize": True, "lam": 0.4, "alpha": 2.0, "form": "clip_entropy"}
    calibrated = read_settings({**STOCK, "adv_estimator": "egpo_calibrated", "norm_adv_by_std_in_grpo": False})
    assert calibrated.segment == "answer"
    assert calibrated.arguments["normalize"] is False
    assert calibrated.arguments["lambda_max"] == 2.0


def test_older_spellings_mean_the_same():
    older = {"adv_estimator": "egpo", "egpo_lambda": 0.3, "egpo_alpha": 3.0, "egpo": {"entropy_mode": "response"}}
    newer = {"adv_estimator": "egpo", "egpo": {"lam": 0.3, "alpha": 3.0, "entropy_mode": "response"}}
    assert read_settings({**STOCK, **older}) == read_settings({**STOCK, **newer})
    older = {"lambda_min": 0.8, "lambda_max": 1.5, "entropy_epsilon": 1e-4}
    arguments = read_settings({**STOCK, "adv_estimator": "egpo_calibrated", "egpo": older}).arguments
    assert (arguments["lambda_min"], arguments["lambda_max"], arguments["eps"]) == (0.8, 1.5, 1e-4)


def test_two_spellings_that_agree_are_one_and_two_that_do_not_are_refused():
    same = read_settings({**STOCK, "adv_estimator": "egpo", "egpo_lambda": 0.3, "egpo": {"lam": 0.3}})
    assert same.arguments["lam"] == 0.3
    assert refused(adv_estimator="egpo", egpo_lambda=0.2, egpo={"lam": 0.3}) == (
        "algorithm: `algorithm.egpo.lam` is 0.3 and `algorithm.egpo_lambda` is 0.2, but both name the same setting; "
        "keep algorithm.egpo.lam"
    )


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (
            {"adv_estimator": "egpo", "egpo": {"lamm": 0.3}},
            "algorithm.egpo: unknown key `lamm`; did you mean `lam`?",
        ),
        (
            {"adv_estimator": "egpo", "egpo_lamda": 0.3},
            "algorithm: unknown key `egpo_lamda`; did you mean `egpo_lambda`?",
        ),
        (
            {"adv_estimator": "egpo_calibratd"},
            "algorithm.adv_estimator: unknown estimator `egpo_calibratd`; did you mean `egpo_calibrated`?",
        ),
        (
            {"adv_estimator": "egpo_calibrated", "egpo": {"lam": 0.3}},
            "algorithm.egpo: `lam` is a setting of `egpo`, but the estimator is `egpo_calibrated`; "
            "set algorithm.adv_estimator=egpo, or leave the key out",
        ),
        (
            {"egpo": {"alpha": 3.0}},
            "algorithm.egpo: `alpha` is a setting of `egpo`, but the estimator is `grpo`; "
            "set algorithm.adv_estimator=egpo, or leave the key out",
        ),
        (
            {"adv_estimator": "egpo", "egpo_calibrated": {"eps": 1.0}},
            "algorithm: there is no section `egpo_calibrated`; put its settings under algorithm.egpo",
        ),
        (
            {"adv_estimator": "egpo", "lam": 0.4},
            "algorithm: `algorithm.lam` is 0.4: that is GAE's lambda, which `egpo` does not have; "
            "set +algorithm.egpo.lam=0.4",
        ),
        ({"adv_estimator": "egpo", "egpo": {"lam": 3.0}}, "algorithm.egpo: `lam` 3 is not less than `alpha` 2"),
        ({"adv_estimator": "egpo", "egpo": {"lam": "0.3"}}, "algorithm.egpo: `lam` is '0.3'; it must be a number"),
        ({"adv_estimator": "egpo", "egpo": {"form": "clip"}}, "algorithm.egpo: `form` is `clip`"),
        ({"adv_estimator": "egpo", "egpo": {"tags": ["<a>", "<a>"]}}, "algorithm.egpo: `tags` are `<a>` and `<a>`"),
        ({"adv_estimator": "egpo", "egpo": 0.4}, "algorithm: `egpo` is `0.4`, not a section; set its keys"),
    ],
)
def test_what_hydra_accepts_and_nobody_would_read_is_refused(algorithm, message):
    assert message in refused(**algorithm)


def test_every_fault_is_reported_at_once():
    message = refused(adv_estimator="egpo", egpo_lamda=0.3, lam=0.4, egpo={"alpha": 0.5, "forms": "x"})
    assert len(message.splitlines()) == 4


def test_tags_and_a_record_may_be_asked_for_under_any_estimator():
    settings = read_settings({**STOCK, "egpo": {"tags": ["<a>", "</a>"], "record": "here"}})
    assert (settings.asked, settings.ours, settings.tags, settings.record) == (True, False, ("<a>", "</a>"), "here")
