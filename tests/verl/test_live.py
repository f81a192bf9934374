"""Stock verl commands, for real: three runs that prove many things each."""

import re
from pathlib import Path

import pytest

from egpo.verl.record import VARIABLE, read_record
from tests.verl.live import ONE_CALL, model_that_opens_the_tag, run_verl, write_data
from tests.verl.test_conformance import assert_conforms

pytest.importorskip("verl")
pytestmark = [pytest.mark.verl, pytest.mark.timeout(600)]

EVERY_STEP = {
    "actor/entropy", "actor/pg_loss", "actor/grad_norm", "critic/score/mean", "response_length/mean",
    "response_length/clip_ratio", "entropy/thinking", "entropy/answer", "entropy/response", "groups/zero_variance_frac",
    "groups/all_right_frac", "groups/none_right_frac", "critic/acc/mean", "reward/error_frac",
}  # fmt: skip
BY_EGPO = {f"egpo/{name}" for name in ("bonus/mean", "bonus/max", "entropy/seq_mean", "entropy/group_mean")}
BY_CALIBRATION = {f"egpo/weight/{name}" for name in ("mean", "std", "min", "max")} | {"egpo/ratio/max"}


def trained(run, steps):
    """The run, if it came to its end: what follows from a run that did not would be true of nothing."""
    assert run.exit_code == 0, run.log[-4000:]
    assert [metrics["training/global_step"] for metrics in run.metrics] == list(range(1, steps + 1))
    assert len(records_of(run)) == steps
    return run


@pytest.fixture(scope="module")
def egpo_run(tmp_path_factory):
    """`adv_estimator=egpo` in an otherwise stock command, prompts that open the tag, a temperature that is not 1, and
    mini-batches of 12 responses, up to a multiple of which verl pads the 16."""
    root = tmp_path_factory.mktemp("egpo")
    run = run_verl(
        root,
        data=write_data(root / "data", "function_calling", **ONE_CALL),
        model=model_that_opens_the_tag(root / "model"),
        steps=2,
        algorithm__adv_estimator="egpo",
        actor_rollout_ref__rollout__temperature=0.8,
        actor_rollout_ref__actor__ppo_mini_batch_size=3,
        actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu=4,
        actor_rollout_ref__rollout__log_prob_micro_batch_size_per_gpu=4,
        trainer__test_freq=2,
        more=["+algorithm.egpo.lam=0.3", f"+algorithm.egpo.record={root / 'record'}"],
    )
    return trained(run, steps=2)


@pytest.fixture(scope="module")
def calibrated_run(tmp_path_factory):
    """The colocated asynchronous trainer; programs, judged in verl's reward worker."""
    root = tmp_path_factory.mktemp("calibrated")
    run = run_verl(
        root,
        data=write_data(root / "data", "code"),
        steps=2,
        algorithm__adv_estimator="egpo_calibrated",
        trainer__v1__trainer_mode="egpo_colocate_async",
        more=["+algorithm.egpo.sides=asymmetric", f"+algorithm.egpo.record={root / 'record'}"],
    )
    return trained(run, steps=2)


@pytest.fixture(scope="module")
def broken_run(tmp_path_factory):
    """verl's own grpo with our metrics, and a reward that raises in the second step."""
    root = tmp_path_factory.mktemp("broken")
    return run_verl(
        root,
        data=write_data(root / "data", "function_calling", **ONE_CALL),
        steps=2,
        environment={VARIABLE: str(root / "record")},
        algorithm__adv_estimator="grpo",
        trainer__v1__trainer_mode="egpo_sync",
        reward__custom_reward_function__path=Path(__file__).with_name("raising_reward.py"),
    )


def records_of(run):
    return [read_record(path) for path in sorted((run.folder / "record").glob("step_*.npz"))]


def reasons_of(metrics):
    return {key: value for key, value in metrics.items() if key.startswith("reward/reason/")}


@pytest.mark.parametrize(("run", "names"), [("egpo_run", BY_EGPO), ("calibrated_run", BY_CALIBRATION)])
def test_every_step_logs_everything(run, names, request):
    for metrics in request.getfixturevalue(run).metrics:
        assert set(metrics) >= EVERY_STEP | names
        assert sum(reasons_of(metrics).values()) == pytest.approx(1.0)


def test_validation_has_the_accuracy_of_our_reward(egpo_run):
    assert "val-core/hardgen/acc/mean@1" in egpo_run.metrics[-1]


def test_the_thinking_is_covered_where_the_prompt_opens_the_tag(egpo_run):
    assert all(metrics["egpo/segment/coverage"] > 0.9 for metrics in egpo_run.metrics)
    assert all(recorded.opened_B.all() for recorded in records_of(egpo_run))


def test_padding_rows_are_not_taken_for_responses(egpo_run):
    for recorded, metrics in zip(records_of(egpo_run), egpo_run.metrics, strict=True):
        assert len(recorded.groups) == 16
        num_tokens = recorded.prompt_mask_BS.sum() + recorded.mask_BT.sum()
        assert metrics["perf/total_num_tokens"] == num_tokens + 8 * 128, "verl padded with eight rows of 128 tokens"
        assert metrics.get("reward/reason/correct", 0.0) == recorded.correct_B.mean()


def test_programs_run_in_the_sandbox_of_the_reward_worker(calibrated_run):
    """Right or wrong is known only of a program that ran; without a sandbox none would have been judged."""
    assert all(metrics["reward/error_frac"] == 0.0 for metrics in calibrated_run.metrics)
    seen = {reason.rpartition("/")[2] for metrics in calibrated_run.metrics for reason in reasons_of(metrics)}
    assert seen & {"correct", "wrong_answer"}


@pytest.mark.parametrize("run", ["egpo_run", "calibrated_run"])
def test_the_embedded_engine_gives_the_advantages_that_verl_used(run, request):
    for recorded in records_of(request.getfixturevalue(run)):
        assert_conforms(recorded)


def test_verl_s_own_grpo_has_our_metrics_and_its_own_advantages(broken_run):
    (metrics,) = broken_run.metrics
    assert set(metrics) >= EVERY_STEP
    assert not [key for key in metrics if key.startswith("egpo/")]
    (recorded,) = records_of(broken_run)
    assert recorded.about["estimator"] == "grpo"
    assert_conforms(recorded)


def test_a_reward_that_raises_ends_the_run_and_says_why(broken_run):
    assert broken_run.exit_code != 0
    assert re.search(r"the rollout or the reward of \d prompts? raised", broken_run.log)
    assert "no space left for the checker" in broken_run.log
