"""Configurations under which entropy would be missing or wrong are refused before the first step."""

import pytest

from egpo.errors import ConfigError, EgpoError, InputError
from egpo.verl.plugin_checks import check_data_sources, plugin_plan
from tests.local.conftest import build_tokenizer


def config(mode="sync", estimator="egpo", use_v1=True, temperature=1.0, bypass=False, path="pkg://egpo.verl.reward"):
    return {
        "algorithm": {"adv_estimator": estimator, "rollout_correction": {"bypass_mode": bypass}},
        "trainer": {"use_v1": use_v1, "v1": {"trainer_mode": mode}},
        "actor_rollout_ref": {"rollout": {"temperature": temperature}},
        "reward": {"custom_reward_function": {"path": path}},
    }


@pytest.mark.parametrize(
    ("mode", "estimator", "active", "stock"),
    [
        ("sync", "egpo", True, "sync"),
        ("egpo_sync", "egpo_calibrated", True, "sync"),
        ("egpo_sync", "grpo", True, "sync"),
        ("egpo_colocate_async", "egpo", True, "colocate_async"),
        ("sync", "grpo", False, "sync"),
        ("separate_async", "gae", False, "separate_async"),
    ],
)
def test_the_plug_in_has_a_part_only_where_it_was_asked_for(mode, estimator, active, stock):
    plan = plugin_plan(config(mode, estimator))
    assert (plan.active, plan.mode) == (active, stock)


def test_a_stock_run_is_never_refused():
    plugin_plan(config(estimator="grpo", bypass=True, temperature=0.0))
    plugin_plan(config(estimator="grpo", use_v1=False))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"bypass": True},
            "algorithm.rollout_correction: bypass_mode skips the pass that computes the entropy, which `egpo` needs; "
            "algorithm.rollout_correction.bypass_mode=False",
        ),
        (
            {"mode": "separate_async"},
            "trainer.v1.trainer_mode: trainer mode `separate_async` does not pass `egpo` the entropy it needs; choose "
            "from `sync`, `colocate_async`, `egpo_sync`, `egpo_colocate_async`",
        ),
        ({"mode": "egpo_synk"}, "did you mean `egpo_sync`?"),
        (
            {"use_v1": False},
            "trainer: trainer.use_v1 is false, and `egpo` needs the entropy that this deprecated trainer drops; "
            "trainer.use_v1=True",
        ),
        ({"temperature": 0.0}, "actor_rollout_ref.rollout: temperature is 0: the entropy of greedy sampling is 0"),
    ],
)
def test_refusals_say_what_to_do(changed, message):
    with pytest.raises(ConfigError) as caught:
        plugin_plan(config(**changed))
    assert message in str(caught.value)


def test_all_refusals_at_once():
    with pytest.raises(ConfigError) as caught:
        plugin_plan(config(mode="separate_async", bypass=True, temperature=0.0))
    assert len(caught.value.faults) == 3


def test_programs_need_a_sandbox_before_the_first_step(monkeypatch):
    monkeypatch.setenv("EGPO_SANDBOX", "http://127.0.0.1:9/run_code")
    check_data_sources(config(), ["gsm8k", "hardgen"], build_tokenizer())
    for source in ("code", "mixed"):
        with pytest.raises(EgpoError, match="sandbox"):
            check_data_sources(config(), ["gsm8k", source], build_tokenizer())
    check_data_sources(config(path="my_reward.py"), ["code"], build_tokenizer())


def test_an_unknown_data_source_is_refused_with_the_nearest_one():
    with pytest.raises(InputError, match="unknown data source `gsm9k`; did you mean `gsm8k`"):
        check_data_sources(config(), ["gsm9k"], build_tokenizer())
    check_data_sources(config(path=None), ["gsm9k"], build_tokenizer())


def test_a_tag_that_verl_s_decoding_would_drop_is_refused():
    tokenizer = build_tokenizer()
    check_data_sources(config(), ["hardgen"], tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["</think>"]})
    with pytest.raises(InputError, match="</think>"):
        check_data_sources(config(), ["hardgen"], tokenizer)
