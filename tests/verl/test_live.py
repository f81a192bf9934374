"""A stock verl command, for real: one run that proves many things. The launcher's runs are in test_launch_live.py."""

import re
from pathlib import Path

import pytest

from tests.verl.live import (
    BY_EGPO,
    EVERY_STEP,
    ONE_CALL,
    model_that_opens_the_tag,
    reasons_of,
    records_in,
    run_verl,
    write_data,
)
from tests.verl.test_conformance import assert_conforms
from tests.verl.updates import assert_same_steps, mini_batches_of

pytest.importorskip("verl")
pytestmark = [pytest.mark.verl, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """`adv_estimator=egpo` in an otherwise stock command, prompts that open the tag, a temperature that is not 1,
    mini-batches of 12 responses, up to a multiple of which verl pads the 16, and a reward that raises in the third
    step."""
    root = tmp_path_factory.mktemp("egpo")
    run = run_verl(
        root,
        data=write_data(root / "data", "function_calling", **ONE_CALL),
        model=model_that_opens_the_tag(root / "model"),
        steps=3,
        algorithm__adv_estimator="egpo",
        actor_rollout_ref__rollout__temperature=0.8,
        actor_rollout_ref__actor__ppo_mini_batch_size=3,
        actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu=4,
        actor_rollout_ref__rollout__log_prob_micro_batch_size_per_gpu=4,
        trainer__test_freq=2,
        reward__custom_reward_function__path=Path(__file__).with_name("raising_reward.py"),
        more=["+algorithm.egpo.lam=0.3", f"+algorithm.egpo.record={root / 'record'}"],
    )
    # What follows from a run without these steps would be true of nothing.
    assert [metrics["training/global_step"] for metrics in run.metrics] == [1, 2], run.log[-4000:]
    assert len(records_in(root / "record")) == 2
    return run


def test_every_step_logs_everything(run):
    for metrics in run.metrics:
        assert set(metrics) >= EVERY_STEP | BY_EGPO
        assert sum(reasons_of(metrics).values()) == pytest.approx(1.0)


def test_validation_has_the_accuracy_of_our_reward(run):
    assert "val-core/hardgen/acc/mean@1" in run.metrics[-1]


def test_the_thinking_is_covered_where_the_prompt_opens_the_tag(run):
    assert all(metrics["egpo/segment/coverage"] > 0.9 for metrics in run.metrics)
    assert all(recorded.opened_B.all() for recorded in records_in(run.folder / "record"))


def test_padding_rows_are_not_taken_for_responses(run):
    for recorded, metrics in zip(records_in(run.folder / "record"), run.metrics, strict=True):
        assert len(recorded.groups) == 16
        num_tokens = recorded.prompt_mask_BS.sum() + recorded.mask_BT.sum()
        assert metrics["perf/total_num_tokens"] == num_tokens + 8 * 128, "verl padded with eight rows of 128 tokens"
        assert metrics.get("reward/reason/correct", 0.0) == recorded.correct_B.mean()


def test_the_embedded_engine_gives_the_advantages_that_verl_used(run):
    for recorded in records_in(run.folder / "record"):
        assert recorded.about["estimator"] == "egpo"
        assert_conforms(recorded)


def test_the_embedded_engine_s_update_gives_the_loss_and_the_gradient_that_verl_logged(run):
    """Two optimizer steps in each step, the second of which is off-policy, at a temperature that is not 1."""
    recorded = records_in(run.folder / "record")
    assert [len(mini_batches_of(one)) for one in recorded] == [2, 2]
    assert_same_steps(recorded, run.metrics)


def test_a_reward_that_raises_ends_the_run_and_says_why(run):
    assert run.exit_code != 0
    assert re.search(r"the rollout or the reward of \d prompts? raised", run.log)
    assert "no space left for the checker" in run.log
