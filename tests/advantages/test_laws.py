"""What must hold for every batch."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from egpo.advantages import ESTIMATORS, Signals, egpo, egpo_calibrated, explain, grpo, over_tokens
from tests.advantages import reference
from tests.advantages.batches import batches, called, tokens_for

pytestmark = pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")

SHAPED_REWARDS = [0.05, 0.1, 0.2, 0.3, 0.35, 0.6, 0.7, 0.9, 1.0, 1.1, 1 / 3, 53.2, -0.3, 1e-3, 1e6]
FORMS = st.sampled_from(["clip_entropy", "clip_bonus"])
SIDES = st.sampled_from(["both", "asymmetric", "positive_only"])
ALPHAS = st.floats(1.01, 8)

NAMES = sorted(ESTIMATORS)
SHAPED = {"gtpo", "grpo_s"}
"""Estimators under which groups of equal rewards have a gradient: right and wrong responses are compared apart."""
AT_ZERO_STRENGTH = {
    "egpo": {"lam": 0.0},
    "egpo_calibrated": {"lambda_min": 1.0, "lambda_max": 1.0},
    "token_entropy": {"alpha": 0.0},
    "high_entropy": {"rho": 1.0},
}
KEEPS_SIGNS = ("egpo", "egpo_calibrated", "token_entropy", "high_entropy", "edge")


def signals_of(batch, **changes):
    return Signals(
        **{
            "reward_B": torch.tensor(batch.rewards),
            "group_B": torch.tensor(batch.groups),
            "entropy_B": torch.tensor(batch.entropies),
            "correct_B": torch.tensor(batch.correct),
            **changes,
        }
    )


def close(a, b, tolerance=1e-6):
    torch.testing.assert_close(
        torch.as_tensor(a, dtype=torch.float64), torch.as_tensor(b, dtype=torch.float64), rtol=tolerance, atol=tolerance
    )


@given(batches(), st.booleans())
def test_grpo_equals_the_slow_reference(batch, normalize):
    close(grpo(signals_of(batch), normalize=normalize), reference.grpo(batch.rewards, batch.groups, normalize))


@given(batches(), ALPHAS, st.floats(0, 0.99), FORMS, st.booleans())
def test_egpo_equals_the_slow_reference(batch, alpha, share, form, normalize):
    lam = share * alpha
    expected = reference.egpo(batch.rewards, batch.groups, batch.entropies, lam, alpha, form, normalize)
    close(egpo(signals_of(batch), lam=lam, alpha=alpha, form=form, normalize=normalize), expected)


@given(batches(), st.floats(0, 1), st.floats(1, 5), st.sampled_from([1e-6, 1e-2]), SIDES, st.booleans())
def test_egpo_calibrated_equals_the_slow_reference(batch, low, high, eps, sides, normalize):
    expected = reference.egpo_calibrated(
        batch.rewards, batch.groups, batch.entropies, batch.correct, low, high, eps, sides, normalize
    )
    settings = {"lambda_min": low, "lambda_max": high, "eps": eps, "sides": sides, "normalize": normalize}
    close(egpo_calibrated(signals_of(batch), **settings), expected, 2e-6)


@given(batches(min_group=2), st.booleans())
def test_groups_sum_to_zero_under_grpo(batch, normalize):
    advantage = grpo(signals_of(batch), normalize=normalize)
    for group in set(batch.groups):
        assert abs(float(advantage[torch.tensor(batch.groups) == group].double().sum())) < 1e-5


@given(batches(min_group=2), st.floats(-3, 3))
def test_shifting_all_rewards_changes_nothing(batch, shift):
    # float64: adding a shift in float32 changes the rewards themselves.
    before = grpo(signals_of(batch, reward_B=torch.tensor(batch.rewards, dtype=torch.float64)))
    after = grpo(signals_of(batch, reward_B=torch.tensor(batch.rewards, dtype=torch.float64) + shift))
    close(before, after, 1e-5)


@given(batches(min_group=2), st.floats(0.1, 50))
def test_scaling_rewards_changes_nothing_but_eps_when_normalized(batch, scale):
    rewards = torch.tensor(batch.rewards, dtype=torch.float64)
    before, after = (grpo(signals_of(batch, reward_B=r)) for r in (rewards, rewards * scale))
    # x / (s + eps) against x / (s + eps / scale): what eps alone may do, and no more.
    std = torch.stack([rewards[torch.tensor(batch.groups) == g].std() for g in batch.groups])
    close(before * (std + 1e-6), after * (std + 1e-6 / scale), 1e-8)


@given(batches(min_group=2), st.floats(0.1, 50))
def test_scaling_rewards_scales_the_advantage_when_not_normalized(batch, scale):
    rewards = torch.tensor(batch.rewards, dtype=torch.float64)
    before, after = (grpo(signals_of(batch, reward_B=r), normalize=False) for r in (rewards, rewards * scale))
    close(before * scale, after, 1e-9)


@given(batches(), st.sampled_from(NAMES), st.randoms())
def test_row_order_does_not_matter(batch, name, random):
    order = list(range(len(batch.rewards)))
    random.shuffle(order)
    signals = signals_of(batch)
    shuffled = Signals(
        signals.reward_B[order], signals.group_B[order], signals.entropy_B[order], signals.correct_B[order]
    )
    close(called(name, signals)[order], called(name, shuffled, order=order))


@given(batches(), st.sampled_from(NAMES))
def test_group_labels_do_not_matter(batch, name):
    advantage = called(name, signals_of(batch))
    assert torch.equal(advantage, called(name, signals_of(batch, group_B=[f"uid-{g}" for g in batch.groups])))
    relabelled = torch.tensor([-3 * g + 1 for g in batch.groups])
    close(advantage, called(name, signals_of(batch, group_B=relabelled)))


@given(batches(), st.sampled_from(sorted(AT_ZERO_STRENGTH)), st.booleans())
def test_without_strength_it_is_grpo_to_the_bit(batch, name, normalize):
    signals = signals_of(batch)
    found = called(name, signals, normalize=normalize, **AT_ZERO_STRENGTH[name])
    expected = grpo(signals, normalize=normalize)
    if ESTIMATORS[name].level == "token":
        expected = over_tokens(expected, tokens_for(len(batch.rewards), 0).mask_BT)
    assert torch.equal(found, expected)


@given(batches(), st.sampled_from(KEEPS_SIGNS))
def test_no_advantage_has_the_opposite_sign_of_grpos(batch, name):
    base = grpo(signals_of(batch))
    found = called(name, signals_of(batch))
    assert (found * (base if found.ndim == 1 else base[:, None]) >= 0).all()


@given(batches(min_group=1), st.sampled_from([name for name in NAMES if name not in SHAPED]))
def test_a_group_of_one_row_has_grpos_advantage_without_entropy(batch, name):
    """Its reward, before a bonus or a weight; the entropy is 0 here, which gives none of either."""
    alone = [batch.groups.count(g) == 1 for g in batch.groups]
    signals = signals_of(batch, entropy_B=torch.full((len(alone),), float("nan")))
    if ESTIMATORS[name].level == "response":
        assert torch.equal(called(name, signals)[alone], signals.reward_B[alone])


@given(batches(), ALPHAS, FORMS)
def test_egpo_at_zero_strength_is_grpo_to_the_bit(batch, alpha, form):
    assert torch.equal(egpo(signals_of(batch), lam=0.0, alpha=alpha, form=form), grpo(signals_of(batch)))


@given(batches(), SIDES)
def test_egpo_calibrated_at_zero_strength_is_grpo_to_the_bit(batch, sides):
    calibrated = egpo_calibrated(signals_of(batch), lambda_min=1.0, lambda_max=1.0, sides=sides)
    assert torch.equal(calibrated, grpo(signals_of(batch)))


@given(batches(), st.floats(1.01, 8), st.floats(0, 0.99), FORMS, SIDES)
def test_no_sign_turns(batch, alpha, share, form, sides):
    base = grpo(signals_of(batch))
    for advantage in (
        egpo(signals_of(batch), lam=share * alpha, alpha=alpha, form=form),
        egpo_calibrated(signals_of(batch), sides=sides),
    ):
        assert torch.equal(advantage.sign(), base.sign())


@given(batches(), ALPHAS, st.floats(0, 0.99), FORMS)
def test_the_bonus_stays_within_its_cap(batch, alpha, share, form):
    lam = share * alpha
    base = grpo(signals_of(batch))
    bonus = egpo(signals_of(batch), lam=lam, alpha=alpha, form=form) - base
    cap = base.abs() / alpha * (lam if form == "clip_entropy" else 1.0)
    assert torch.all(bonus.abs() <= cap + 1e-6)
    assert torch.all(bonus >= -1e-6), "entropy is never negative, so neither is the bonus"


@given(batches(), st.floats(0, 1), st.floats(1, 5), SIDES)
def test_weights_stay_within_their_clip(batch, low, high, sides):
    metrics = explain("egpo_calibrated", signals_of(batch), lambda_min=low, lambda_max=high, sides=sides)
    # A row that cannot be measured has weight 1, which lies within every clip.
    assert low - 1e-9 <= metrics["egpo/weight/min"] <= metrics["egpo/weight/mean"] + 1e-9
    assert metrics["egpo/weight/mean"] - 1e-9 <= metrics["egpo/weight/max"] <= high + 1e-9


@pytest.mark.parametrize("name", [name for name in NAMES if name not in SHAPED])
@pytest.mark.parametrize("reward", SHAPED_REWARDS)
@pytest.mark.parametrize("size", [2, 3, 7, 8, 16, 64])
def test_constant_groups_are_exactly_zero(name, reward, size):
    reward_B = torch.full((size,), reward, dtype=torch.float32)
    signals = Signals(reward_B, [0] * size, entropy_B=torch.linspace(0, 3, size))
    found = called(name, signals)
    assert torch.equal(found, torch.zeros_like(found))


@pytest.mark.parametrize("name", sorted(SHAPED))
def test_constant_groups_have_a_gradient_where_the_sides_are_compared_apart(name):
    for correct in (True, False):
        signals = Signals([float(correct)] * 4, [0] * 4, entropy_B=[0.1, 0.2, 0.3, 0.4], correct_B=[correct] * 4)
        assert called(name, signals).any()
        assert not called(name, signals, compare="group", alpha2=0.0).any()


@given(batches(), st.sampled_from(NAMES), st.sampled_from([torch.float32, torch.float64]))
def test_nothing_but_finite_numbers_of_the_rewards_dtype_comes_out(batch, name, dtype):
    signals = signals_of(batch, reward_B=torch.tensor(batch.rewards, dtype=dtype))
    metrics = {}
    advantage = called(name, signals, metrics=metrics)
    assert advantage.dtype == dtype
    assert torch.isfinite(advantage).all()
    assert all(math.isfinite(value) for value in metrics.values())
    if advantage.ndim == 2:
        assert not advantage[~tokens_for(len(batch.rewards), 0).mask_BT].any()


@given(batches(), SIDES)
def test_the_sides_of_egpo_calibrated_give_finite_numbers(batch, sides):
    assert torch.isfinite(egpo_calibrated(signals_of(batch), sides=sides, recover=1.0)).all()
