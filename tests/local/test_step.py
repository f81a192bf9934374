"""A whole step: the same seed gives the same figures, and every figure says what it measures."""

import math

import pytest
import torch

from egpo.advantages import ESTIMATORS, Signals
from egpo.config import load_config
from egpo.config.sections.algorithm import Overlong
from egpo.errors import EgpoError
from egpo.local.collect import collect, judge, overlong_penalty
from egpo.local.run import open_run
from egpo.local.step import step
from egpo.local.summarise import reason_shares
from egpo.local.updates.reference import reference_logp
from egpo.rewards.verdict import Verdict
from egpo.tasks import Problem
from tests.local.device import WORDS

pytestmark = pytest.mark.filterwarnings("ignore:.*neither.*:egpo.errors.EgpoWarning")


class Parity:
    """Right where the response has an even number of characters: about half of what a random model writes."""

    def __init__(self, size=6, broken=""):
        self._size, self._broken = size, broken

    def problems(self, split):
        return [Problem(f"p{i}", ({"role": "user", "content": "x" * (i + 1)},), str(i)) for i in range(self._size)]

    def prompt(self, problem):
        return list(problem.messages)

    def judge(self, problem, text):
        if self._broken == "always" or (self._broken == "often" and len(text) % 3 == 0):
            raise RuntimeError("the checker broke")
        if self._broken == "agrees":
            return Verdict(0.5, False, "same")
        if problem.key == "p0":
            return Verdict(1.0, True, "easy")
        right = len(text) % 2 == 0
        return Verdict(float(right), right, "even" if right else "odd")

    def gold(self, problem):
        return ""


def opened(model_folder, *overrides, shape="qwen3"):
    return open_run(
        load_config(
            overrides=[
                f"model.path={model_folder(shape)}",
                *WORDS,
                "task.name=tests.local.test_step:Parity",
                "rollout.prompts=3",
                "rollout.n=4",
                "rollout.max_response_tokens=12",
                f"rollout.stop_tokens={list(range(3, 33))}",
                "update.lr=1e-3",
                *overrides,
            ]
        )
    )


def metrics_of(run, steps=3):
    return [step(run, number).metrics for number in range(steps)]


@pytest.mark.parametrize("estimator", ["grpo", "egpo", "egpo_calibrated"])
def test_the_same_seed_gives_the_same_metrics_and_another_does_not(model_folder, estimator):
    chosen = f"algorithm.estimator={estimator}"
    extra = ["algorithm.egpo.entropy_mode=response"]
    first = metrics_of(opened(model_folder, chosen, *extra))
    assert metrics_of(opened(model_folder, chosen, *extra)) == first
    assert metrics_of(opened(model_folder, chosen, "seed=1", *extra)) != first


@pytest.mark.filterwarnings("ignore:.*under `pass_at_k`.*:egpo.errors.EgpoWarning")
@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
def test_the_advantages_are_those_of_the_estimator_on_what_was_measured(model_folder, estimator):
    run = opened(model_folder, f"algorithm.estimator={estimator}", "algorithm.egpo.entropy_mode=response")
    outcome = step(run, 0)
    rollouts, settings = outcome.batch.rollouts, run.config.algorithm
    entropy_BT, mask_BT = rollouts.entropy_BT.cpu(), rollouts.mask_BT.cpu()
    entropy_BT = torch.where(mask_BT, entropy_BT, 0.0)
    signals = Signals(
        reward_B=torch.tensor([verdict.reward for verdict in outcome.batch.verdicts]),
        group_B=rollouts.problem_B,
        entropy_B=entropy_BT.sum(1) / mask_BT.sum(1),  # no tags: all is answer, and all is response
        correct_B=torch.tensor([verdict.correct for verdict in outcome.batch.verdicts]),
    )
    if ESTIMATORS[estimator].level == "token":
        expected = ESTIMATORS[estimator](signals, entropy_BT, mask_BT, **settings.settings)
        torch.testing.assert_close(outcome.estimate.advantage_BT.cpu(), expected, atol=1e-6, rtol=0)
        expected = expected.sum(1) / mask_BT.sum(1)
    else:
        expected = ESTIMATORS[estimator](signals, **settings.settings)
    torch.testing.assert_close(outcome.estimate.advantage_B, expected, atol=1e-6, rtol=0)


def test_metrics_say_what_happened(model_folder):
    outcome = step(opened(model_folder, "rollout.prompts=6"), 0)
    metrics, verdicts = outcome.metrics, outcome.batch.verdicts
    rollouts = outcome.batch.rollouts
    assert metrics["critic/score/mean"] == pytest.approx(sum(v.reward for v in verdicts) / 24)
    assert metrics["critic/acc/mean"] == pytest.approx(sum(v.correct for v in verdicts) / 24)
    assert metrics["reward/reason/easy"] == pytest.approx(4 / 24)
    assert metrics["reward/error_frac"] == 0
    assert metrics["response_length/mean"] == pytest.approx(float(rollouts.length_B.float().mean()))
    assert metrics["response_length/clip_ratio"] == pytest.approx(1 - float(rollouts.finished_B.float().mean()))
    assert metrics["actor/entropy"] == pytest.approx(float(rollouts.entropy_BT[rollouts.mask_BT].mean()))
    assert metrics["entropy/answer"] == pytest.approx(metrics["entropy/response"])
    assert "entropy/thinking" not in metrics, "nothing was thought: no figure"
    assert metrics["groups/zero_variance_frac"] >= 1 / 6, "the easy problem's group agrees"
    assert metrics["training/epoch"] == 1.0
    assert all(math.isfinite(value) for value in metrics.values())


def test_a_judge_that_fails_on_some_rows_teaches_nothing_there(model_folder):
    outcome = step(opened(model_folder, "task.settings.broken=often"), 0)
    failed = torch.tensor([verdict.failed for verdict in outcome.batch.verdicts])
    assert 0 < outcome.metrics["reward/error_frac"] < 1
    assert outcome.estimate.advantage_B[failed].isnan().all()
    assert not outcome.batch.kept_B[failed].any()
    judged = [verdict for verdict in outcome.batch.verdicts if not verdict.failed]
    assert outcome.metrics["critic/acc/mean"] == pytest.approx(sum(v.correct for v in judged) / len(judged))


def test_a_judge_that_fails_on_every_row_ends_the_run(model_folder):
    with pytest.raises(EgpoError, match=r"failed on all 12 responses.*RuntimeError: the checker broke"):
        step(opened(model_folder, "task.settings.broken=always"), 0)


def test_groups_that_agree_are_kept_dropped_or_replaced(model_folder):
    kept, dropped, replaced = (
        step(opened(model_folder, f"algorithm.constant_groups={how}", "rollout.prompts=6"), 0)
        for how in ("keep", "drop", "replace")
    )
    assert len(kept.estimate.rows) == 24
    assert kept.metrics["groups/dropped"] == 0
    agreeing = round(6 * kept.metrics["groups/zero_variance_frac"])
    assert agreeing > 0
    assert dropped.metrics["groups/zero_variance_frac"] == kept.metrics["groups/zero_variance_frac"]
    assert dropped.metrics["groups/dropped"] == agreeing
    assert len(dropped.estimate.rows) == 24 - 4 * agreeing
    assert replaced.metrics["groups/refills"] >= 1
    assert len(replaced.estimate.rows) > len(dropped.estimate.rows)
    assert len(replaced.estimate.rows) <= 24


@pytest.mark.parametrize("how", ["keep", "drop", "replace"])
def test_a_step_in_which_everything_agrees_changes_no_weight(model_folder, how):
    run = opened(model_folder, "task.settings.broken=agrees", f"algorithm.constant_groups={how}")
    before = {name: weight.clone() for name, weight in run.policy.model.named_parameters()}
    metrics = step(run, 0).metrics
    assert metrics["groups/zero_variance_frac"] == 1.0
    assert all(torch.equal(weight, before[name]) for name, weight in run.policy.model.named_parameters())


@pytest.mark.parametrize("where", ["loss", "reward"])
def test_kl_is_zero_before_the_first_update_and_grows(model_folder, where):
    # At a temperature of its own: the reference's log-probabilities are of the distribution that was sampled from.
    settings = ["update.kl=0.1", f"update.kl_in={where}", "update.lr=1e-2", "rollout.temperature=0.6"]
    run = opened(model_folder, *settings)
    first, *_, last = metrics_of(run, 4)
    assert first["actor/kl"] == pytest.approx(0.0, abs=1e-5)
    assert last["actor/kl"] > 1e-4


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_in_the_reward_is_the_chosen_estimate_of_each_response(model_folder, estimator):
    run = opened(
        model_folder, "update.kl=0.3", "update.kl_in=reward", f"update.kl_estimator={estimator}", "update.lr=1e-2"
    )
    step(run, 0)
    batch = collect(run, 1)
    rollouts = batch.rollouts
    gap_BT = rollouts.logp_BT - reference_logp(run.reward_reference, rollouts, 1.0, run.budget)
    of_token = {"k1": gap_BT, "k2": gap_BT.square() / 2, "k3": torch.exp(-gap_BT) - 1 + gap_BT}[estimator]
    kl_B = torch.where(rollouts.mask_BT, of_token, 0.0).sum(1).cpu()
    assert float(kl_B.abs().max()) > 1e-3
    scores = torch.tensor([verdict.reward for verdict in batch.verdicts])
    torch.testing.assert_close(batch.reward_B, scores - 0.3 * kl_B, atol=1e-5, rtol=0)


def test_the_first_update_starts_from_the_policy_that_sampled(model_folder):
    metrics = step(opened(model_folder, "rollout.temperature=0.6"), 0).metrics
    assert metrics["actor/ppo_kl"] == pytest.approx(0.0, abs=1e-5)
    assert metrics["actor/pg_clipfrac"] == 0


def test_the_update_is_told_what_the_config_says(model_folder):
    run = opened(model_folder, "seed=3", "steps=17", "rollout.temperature=0.6", "update.micro_tokens=99")
    told = run.settings
    assert (told.temperature, told.horizon, told.seed, told.total_steps) == (0.6, 12, 3, 17)
    assert run.budget.tokens == 99
    assert told.update is run.config.update


def test_a_refill_draws_anew(model_folder):
    """A problem that comes again in a further round of the same step gets other responses."""
    settings = ["task.settings.size=1", "task.settings.broken=agrees", "rollout.prompts=1"]
    rollouts = collect(opened(model_folder, *settings, "algorithm.constant_groups=replace"), 0).rollouts
    assert len(rollouts) == 16, "a round and three refills"
    assert len(set(rollouts.texts)) > 4


def test_judging_keeps_the_order_of_rows(model_folder):
    outcome = step(opened(model_folder), 0)
    rollouts, task = outcome.batch.rollouts, Parity()
    expected = [
        task.judge(rollouts.problems[p], text) for p, text in zip(rollouts.problem_B, rollouts.texts, strict=True)
    ]
    assert list(judge(task, rollouts)) == expected


def test_kl_in_the_reward_makes_no_advantage_out_of_rounding(model_folder):
    """In bfloat16 the sampling pass and the update's differ by rounding, which GRPO would blow up to advantages."""
    run = opened(
        model_folder, "task.settings.broken=agrees", "update.kl=0.001", "update.kl_in=reward", "model.dtype=bfloat16"
    )
    outcome = step(run, 0)
    assert outcome.metrics["groups/zero_variance_frac"] == 1.0
    assert not outcome.estimate.advantage_B.any()


def test_reasons_that_a_judge_makes_up_stay_few_and_plain():
    verdicts = [Verdict(0.0, False, f"\x1b[31m wrong by {i}\n" + "x" * 200) for i in range(50)]
    verdicts += [Verdict(1.0, True, "right")] * 50
    shares = reason_shares(verdicts)
    assert len(shares) == 33
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["right"] == 0.5
    assert all(len(name) <= 48 and name.isprintable() and " " not in name for name in shares)


def rewards_of(batch):
    return torch.tensor([verdict.reward for verdict in batch.verdicts])


@pytest.mark.parametrize(
    ("length", "penalty"), [(0, 0.0), (1, 0.0), (60, 0.0), (61, 0.025), (80, 0.5), (99, 0.975), (100, 1.0)]
)
def test_the_overlong_penalty_rises_in_the_last_tokens(length, penalty):
    """verl's: min(-(length - (longest - tokens)) / tokens * penalty_factor, 0)."""
    found = float(overlong_penalty(torch.tensor([length]), 100, 40, 1.0))
    assert found == pytest.approx(penalty)
    assert found == pytest.approx(-min(-(length - 60) / 40 * 1.0, 0))


def test_an_overlong_penalty_is_subtracted_from_the_reward_and_from_no_verdict(model_folder):
    outcome = step(opened(model_folder, "algorithm.overlong.tokens=10", "algorithm.overlong.penalty=0.5"), 0)
    batch, metrics = outcome.batch, outcome.metrics
    expected_B = 0.5 * ((batch.rollouts.length_B - 2) / 10).clamp(0, 1)
    torch.testing.assert_close(batch.reward_B, rewards_of(batch) - expected_B)
    torch.testing.assert_close(
        outcome.estimate.advantage_B, ESTIMATORS["grpo"](Signals(batch.reward_B, batch.rollouts.problem_B))
    )
    plain = step(opened(model_folder), 0)
    assert [v.reward for v in plain.batch.verdicts] == [v.reward for v in batch.verdicts]
    for name in ("critic/score/mean", "critic/acc/mean"):
        assert metrics[name] == plain.metrics[name]
    assert metrics["reward/overlong_penalty/mean"] == pytest.approx(float(expected_B.mean()))
    assert metrics["critic/rewards/mean"] == pytest.approx(metrics["critic/score/mean"] - float(expected_B.mean()))
    assert not [name for name in plain.metrics if name.startswith("reward/overlong")]


def test_a_fifth_of_the_maximum_length_is_penalised_by_default():
    assert [Overlong(penalty=2.0).range_below(longest) for longest in (1, 4, 100, 20_480)] == [1, 1, 20, 4_096]
    assert Overlong(tokens=7).range_below(100) == 7


def test_a_penalty_over_more_tokens_than_a_response_has_is_refused(model_folder):
    with pytest.raises(EgpoError, match="responses have at most 12 tokens"):
        opened(model_folder, "algorithm.overlong.tokens=13")


@pytest.mark.parametrize("estimator", ["grpo", "egpo_calibrated"])
def test_random_rewards_say_nothing_about_the_responses(model_folder, estimator):
    """Not even `correct_B`, which some estimators read; score and accuracy stay those of the verdicts."""
    words = ["rollout.prompts=6", f"algorithm.estimator={estimator}", "algorithm.egpo_calibrated.entropy_mode=response"]
    outcome = step(opened(model_folder, *words, "algorithm.random_rewards=0.5"), 0)
    broken = step(opened(model_folder, *words, "algorithm.random_rewards=0.5", "task.settings.broken=agrees"), 0)
    plain = step(opened(model_folder, *words), 0)
    batch = outcome.batch
    assert set(batch.reward_B.tolist()) == {0.0, 1.0}
    assert batch.correct_B.tolist() == (batch.reward_B > 0).tolist()
    assert torch.equal(batch.reward_B, broken.batch.reward_B)
    assert torch.equal(outcome.estimate.advantage_B, broken.estimate.advantage_B)
    assert outcome.metrics["critic/acc/mean"] == plain.metrics["critic/acc/mean"]
    assert outcome.metrics["critic/score/mean"] == plain.metrics["critic/score/mean"]
    assert outcome.metrics["critic/rewards/mean"] == pytest.approx(float(batch.reward_B.mean()))
    assert outcome.metrics["reward/random_frac"] == 1.0
    assert "reward/random_frac" not in plain.metrics


def test_random_rewards_have_their_probability_and_are_drawn_by_problem_and_sample(model_folder):
    run = opened(model_folder, "algorithm.random_rewards=0.2", "rollout.prompts=6", "rollout.n=8")
    batches = [collect(run, number) for number in range(12)]
    mean = float(torch.cat([batch.reward_B for batch in batches]).mean())
    assert mean == pytest.approx(0.2, abs=4 * (0.16 / (12 * 48)) ** 0.5)  # four standard errors
    rows = {}
    for batch in batches[:1]:
        for index, reward in zip(batch.rollouts.problem_B.tolist(), batch.reward_B.tolist(), strict=True):
            rows.setdefault(batch.rollouts.problems[index].key, []).append(reward)
    few = opened(model_folder, "algorithm.random_rewards=0.2", "rollout.prompts=6", "rollout.n=3")
    for index, reward in zip(*(part.tolist() for part in first_rows(collect(few, 0))), strict=True):
        assert rows[f"p{index}"].pop(0) == reward


def first_rows(batch):
    keys = [int(batch.rollouts.problems[index].key[1:]) for index in batch.rollouts.problem_B.tolist()]
    return torch.tensor(keys), batch.reward_B


def wants_even_problems(reward_B, group_B, correct_B):
    return group_B % 2 == 1


@pytest.mark.parametrize("choice", ["keep", "drop", "replace"])
def test_a_filter_of_a_users_own_decides_which_groups_are_trained_on(model_folder, choice):
    words = [f"algorithm.constant_groups={choice}", "algorithm.max_refills=2", "rollout.prompts=4"]
    run = opened(model_folder, "algorithm.filter=tests.local.test_step:wants_even_problems", *words)
    outcome = step(run, 0)
    batch, metrics = outcome.batch, outcome.metrics
    if choice == "keep":
        assert batch.kept_B.all()
        assert metrics["groups/dropped"] == 0
        return
    assert batch.num_kept_problems == (2 if choice == "drop" else 4)
    assert metrics["groups/dropped"] == (2 if choice == "drop" else 3)
    assert metrics["groups/refills"] == (0 if choice == "drop" else 2)
    # The fraction of groups without a signal is still that of equal rewards.
    constant = len(set(batch.rollouts.problem_B[batch.constant_B].tolist()))
    groups = len(set(batch.rollouts.problem_B.tolist()))
    assert metrics["groups/zero_variance_frac"] == pytest.approx(constant / groups)
