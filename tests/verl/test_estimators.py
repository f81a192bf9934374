"""The registered estimators give what `egpo.advantages` gives, to the rows that are responses. N rows, T tokens."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from egpo.advantages import ESTIMATORS as FORMULAS
from egpo.advantages import Signals
from egpo.errors import InputError
from egpo.verl.estimators import estimator_for, register_estimators, register_forms_of_judged, with_inputs
from egpo.verl.rows import TokenTables
from tests.verl.batches import LENGTH, feed_for, keys_of

TABLE = {}


def registered(name):
    if not TABLE:
        register_estimators(SimpleNamespace(register_adv_est=lambda name: lambda fn: TABLE.setdefault(name, fn)))
    return TABLE[name]


def token_rewards(reward_N):
    """As verl has them: the score at the last token."""
    reward_NT = torch.zeros(len(reward_N), LENGTH)
    reward_NT[:, -1] = reward_N
    return reward_NT


def advantages(feed, reward_N, mask_NT=None, name=None):
    mask_NT = torch.ones(len(reward_N), LENGTH) if mask_NT is None else mask_NT
    with with_inputs(feed):
        advantage_NT, returns_NT = registered(name or feed.settings.estimator)(
            token_level_rewards=token_rewards(reward_N), response_mask=mask_NT, index=None, config=None
        )
    assert torch.equal(advantage_NT, returns_NT)
    return advantage_NT


@pytest.mark.parametrize("estimator", ["egpo", "egpo_calibrated"])
def test_the_one_implementation_computes(estimator):
    feed, reward_N = feed_for(keys_of(3, 4), estimator=estimator), torch.rand(12)
    entropy_B = feed.measures.entropy["thinking"]
    expected_B = FORMULAS[estimator](Signals(reward_N, torch.arange(12) // 4, entropy_B))
    assert torch.equal(advantages(feed, reward_N), expected_B[:, None].expand(-1, LENGTH))
    assert feed.metrics["egpo/segment/coverage"] == 1.0


def test_tokens_outside_the_mask_get_nothing():
    mask_NT = torch.ones(8, LENGTH)
    mask_NT[:, 4:] = 0
    advantage_NT = advantages(feed_for(keys_of(2, 4)), torch.rand(8), mask_NT)
    assert not advantage_NT[:, 4:].any()
    assert advantage_NT[:, :4].all()


def test_padding_changes_no_advantage_and_no_metric():
    keys, reward_N = keys_of(2, 4), torch.rand(8)
    plain = feed_for(keys)
    expected_NT = advantages(plain, reward_N)
    padded = feed_for(["padff_0_0", *keys, "padff_1_0"], [{"is_padding": True}, *[{}] * 8, {"is_padding": True}])
    # Padding may hold anything: verl copies a real row's fields into it.
    advantage_NT = advantages(padded, torch.cat([torch.tensor([9.0]), reward_N, torch.tensor([-9.0])]))
    assert torch.equal(advantage_NT[1:-1], expected_NT)
    assert not advantage_NT[[0, -1]].any()
    assert padded.metrics == plain.metrics


def test_earlier_outputs_of_a_session_share_the_advantage_of_the_last():
    keys = ["a_0_0", "a_0_1", "a_1_0"]
    advantage_NT = advantages(feed_for(keys), torch.tensor([7.0, 1.0, 0.0]))
    assert torch.equal(advantage_NT[0], advantage_NT[1])
    assert advantage_NT[1, 0] > 0 > advantage_NT[2, 0]


def test_a_response_that_could_not_be_judged_is_left_out_of_its_group():
    keys, reward_N = keys_of(1, 4), torch.tensor([1.0, 0.0, 0.0, 0.0])
    with_failure = advantages(feed_for(keys, failed={3}), reward_N)
    feed = feed_for(keys)
    alone_B = FORMULAS["egpo"](Signals(reward_N[:3], [0, 0, 0], feed.measures.entropy["thinking"][:3]))
    assert with_failure[:, 0].tolist() == [*alone_B.tolist(), 0.0]
    nothing = advantages(feed_for(keys, failed={0, 1, 2, 3}), reward_N)
    assert not nothing.any()


def test_correctness_comes_from_the_reward_s_acc():
    feed = feed_for(keys_of(1, 4), estimator="egpo_calibrated", sides="asymmetric")
    reward_N = torch.tensor([1.0, 0.0, 0.0, 1.0])
    correct_B = torch.tensor([True, False, False, True])
    entropy_B = feed.measures.entropy["answer"]
    expected_B = FORMULAS["egpo_calibrated"](Signals(reward_N, [0] * 4, entropy_B, correct_B), sides="asymmetric")
    assert torch.equal(advantages(feed, reward_N)[:, 0], expected_B)


def with_tokens(feed, entropy_NT, mask_NT):
    return replace(feed, tokens=TokenTables(entropy_NT, mask_NT.bool()))


PER_TOKEN = [name for name, row in FORMULAS.items() if row.level == "token"]


@pytest.mark.parametrize("estimator", PER_TOKEN)
def test_the_one_implementation_computes_for_each_token(estimator):
    """Rows of different lengths with holes, in any order: each token has the advantage that the formula gives it."""
    keys = [keys_of(3, 4)[row] for row in torch.randperm(12, generator=torch.Generator().manual_seed(3))]
    feed, reward_N = feed_for(keys, estimator=estimator), torch.rand(12)
    mask_NT = torch.rand(12, LENGTH, generator=torch.Generator().manual_seed(4)) < 0.7
    feed = with_tokens(feed, feed.tokens.entropy_NT, mask_NT)
    correct_B = torch.tensor([row % 3 == 0 for row in range(12)])
    signals = Signals(reward_N, feed.rows.group_B, correct_B=correct_B)
    expected_BT = FORMULAS[estimator](signals, feed.tokens.entropy_NT, mask_NT)
    advantage_NT = advantages(feed, reward_N, mask_NT.float())
    torch.testing.assert_close(advantage_NT, expected_BT, rtol=0, atol=1e-6)
    assert not advantage_NT[~mask_NT].any()


def test_tokens_of_one_response_differ_and_a_failed_one_has_none():
    keys, reward_N = keys_of(1, 4), torch.tensor([1.0, 0.0, 0.0, 0.0])
    feed = feed_for(keys, estimator="token_entropy", failed={3}, alpha=0.1)
    advantage_NT = advantages(feed, reward_N)
    entropy_BT = feed.tokens.entropy_NT[:3]
    expected_BT = FORMULAS["token_entropy"](
        Signals(reward_N[:3], [0, 0, 0]), entropy_BT, torch.ones_like(entropy_BT).bool(), alpha=0.1
    )
    torch.testing.assert_close(advantage_NT[:3], expected_BT, rtol=0, atol=1e-6)
    assert len(advantage_NT[0].unique()) == LENGTH
    assert not advantage_NT[3].any()
    assert not advantages(feed_for(keys, estimator="token_entropy", failed={0, 1, 2, 3}), reward_N).any()


def test_padding_has_no_token_advantage_and_changes_none():
    keys, reward_N = keys_of(2, 4), torch.rand(8)
    plain = feed_for(keys, estimator="token_entropy")
    expected_NT = advantages(plain, reward_N)
    tags = [{"is_padding": True}, *[{}] * 8]
    padded = feed_for(["padff_0_0", *keys], tags, estimator="token_entropy")
    # A longer row of padding makes every row of verl's tables longer.
    longer = [torch.cat([table, torch.ones(9, 1).to(table.dtype)], 1)
              for table in (padded.tokens.entropy_NT, padded.tokens.mask_NT)]  # fmt: skip
    longer[1][1:, LENGTH] = False
    advantage_NT = advantages(with_tokens(padded, *longer), torch.cat([torch.tensor([9.0]), reward_N]), longer[1])
    torch.testing.assert_close(advantage_NT[1:, :LENGTH], expected_NT, rtol=0, atol=1e-6)
    assert not advantage_NT[0].any()
    assert not advantage_NT[1:, LENGTH:].any()


def test_outputs_of_a_session_are_one_response_whose_tokens_keep_their_own_entropy():
    """In any order of the rows: an earlier output has the session's advantage and the bonus of its own tokens."""
    keys, reward_N = ["a_0_1", "a_1_0", "a_0_0"], torch.tensor([1.0, 0.0, 7.0])
    feed = feed_for(keys, estimator="token_entropy", alpha=0.1)
    entropy_NT = feed.tokens.entropy_NT
    base_B = FORMULAS["grpo"](Signals([1.0, 0.0], [0, 0]))
    base_N = base_B[torch.tensor([0, 1, 0])]
    expected_NT = base_N[:, None] + (0.1 * entropy_NT).minimum(base_N.abs()[:, None] / 2)
    torch.testing.assert_close(advantages(feed, reward_N), expected_NT, rtol=0, atol=1e-6)


def test_an_estimator_from_outside_may_give_advantages_per_token():
    name = "tests.verl.test_estimators:signed_entropy"
    register_estimators(SimpleNamespace(register_adv_est=lambda name: lambda fn: TABLE.setdefault(name, fn)), [name])
    feed, reward_N = feed_for(keys_of(1, 4), estimator=name, scale=3.0), torch.tensor([1.0, 0.0, 0.0, 1.0])
    assert feed.settings.per_token
    expected_NT = 3.0 * (reward_N - 0.5)[:, None] * feed.tokens.entropy_NT
    torch.testing.assert_close(advantages(feed, reward_N), expected_NT, rtol=0, atol=1e-6)


def signed_entropy(signals, entropy_BT, mask_BT, scale=1.0):
    return scale * (signals.reward_B - 0.5).unsqueeze(1) * entropy_BT * mask_BT


@pytest.mark.parametrize("estimator", ["egpo", "grpo", "token_entropy"])
def test_a_control_run_learns_from_drawn_rewards_and_keeps_penalties(estimator):
    """The score at the end of verl's reward is replaced; a penalty of 0.25 that is part of it stays."""
    drawn_B = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0])
    feed = replace(feed_for(keys_of(2, 4), estimator=estimator), drawn_B=drawn_B)
    score_B = feed.rows.score_B
    penalty_B = torch.tensor([0.25, 0, 0, 0, 0.25, 0, 0, 0])
    expected = replace(feed_for(keys_of(2, 4), estimator=estimator))
    name = estimator_for(feed)
    assert name == ("grpo_of_judged_responses" if estimator == "grpo" else estimator), "verl's own sees the real scores"
    register_forms_of_judged(SimpleNamespace(register_adv_est=lambda name: lambda fn: TABLE.setdefault(name, fn)))
    found_NT = advantages(feed, score_B - penalty_B, name=name)
    torch.testing.assert_close(found_NT, advantages(expected, drawn_B - penalty_B, name=name), rtol=0, atol=1e-6)
    assert feed.metrics["reward/random_frac"] == 1.0
    assert feed.metrics["critic/rewards/mean"] == pytest.approx(float((drawn_B - penalty_B).mean()))


def test_in_a_control_run_the_estimator_does_not_see_who_was_right():
    drawn_B = torch.tensor([0.0, 1.0, 1.0, 0.0])
    feed = feed_for(keys_of(1, 4), estimator="egpo_calibrated", sides="asymmetric")
    found_NT = advantages(replace(feed, drawn_B=drawn_B), feed.rows.score_B)
    signals = Signals(drawn_B, [0] * 4, feed.measures.entropy["answer"], drawn_B > 0)
    expected_B = FORMULAS["egpo_calibrated"](signals, sides="asymmetric")
    torch.testing.assert_close(found_NT[:, 0], expected_B, rtol=0, atol=1e-6)


def test_verls_own_estimators_are_used_where_they_count_as_ours_do():
    keys = keys_of(1, 4)
    assert estimator_for(feed_for(keys, estimator="grpo")) == "grpo"
    assert estimator_for(feed_for(keys, estimator="grpo", failed={1})) == "grpo_of_judged_responses"
    assert estimator_for(feed_for(keys, estimator="gae", failed={1})) == "gae", "not one of ours"
    if "rloo" in FORMULAS:
        outputs = ["a_0_0", "a_0_1", "a_1_0"]
        assert estimator_for(feed_for(keys, estimator="rloo")) == "rloo"
        assert estimator_for(feed_for(outputs, estimator="rloo")) == "rloo_of_judged_responses"
        assert estimator_for(feed_for(outputs, estimator="grpo")) == "grpo", "verl itself takes the last output"


def test_without_the_entropy_of_tokens_the_call_is_refused():
    feed = replace(feed_for(keys_of(1, 4), estimator="token_entropy"), tokens=None)
    with pytest.raises(InputError, match="called without the entropy of each token; run verl's main_ppo with"):
        advantages(feed, torch.rand(4))


def test_without_a_trainer_of_ours_the_call_is_refused():
    with pytest.raises(InputError, match="`egpo` was called without the batch's entropy; run verl's main_ppo with"):
        registered("egpo")(token_level_rewards=torch.zeros(2, 3), response_mask=torch.ones(2, 3), index=["a", "a"])
