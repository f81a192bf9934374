"""What must hold for every batch."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from egpo.advantages import ESTIMATORS, Signals, egpo, egpo_calibrated, explain, grpo
from tests.advantages import reference
from tests.advantages.batches import batches

pytestmark = pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")

SHAPED_REWARDS = [0.05, 0.1, 0.2, 0.3, 0.35, 0.6, 0.7, 0.9, 1.0, 1.1, 1 / 3, 53.2, -0.3, 1e-3, 1e6]
FORMS = st.sampled_from(["clip_entropy", "clip_bonus"])
SIDES = st.sampled_from(["both", "asymmetric", "positive_only"])
ALPHAS = st.floats(1.01, 8)

PER_RESPONSE = sorted(name for name, row in ESTIMATORS.items() if row.level == "response")


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


@given(batches(), st.sampled_from(PER_RESPONSE), st.randoms())
def test_row_order_does_not_matter(batch, name, random):
    order = list(range(len(batch.rewards)))
    random.shuffle(order)
    signals = signals_of(batch)
    shuffled = Signals(
        signals.reward_B[order], signals.group_B[order], signals.entropy_B[order], signals.correct_B[order]
    )
    close(ESTIMATORS[name](signals)[order], ESTIMATORS[name](shuffled))


@given(batches(), st.sampled_from(PER_RESPONSE))
def test_group_labels_do_not_matter(batch, name):
    advantage = ESTIMATORS[name](signals_of(batch))
    assert torch.equal(advantage, ESTIMATORS[name](signals_of(batch, group_B=[f"uid-{g}" for g in batch.groups])))
    relabelled = torch.tensor([-3 * g + 1 for g in batch.groups])
    close(advantage, ESTIMATORS[name](signals_of(batch, group_B=relabelled)))


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


@pytest.mark.parametrize("name", PER_RESPONSE)
@pytest.mark.parametrize("reward", SHAPED_REWARDS)
@pytest.mark.parametrize("size", [2, 3, 7, 8, 16, 64])
def test_constant_groups_are_exactly_zero(name, reward, size):
    reward_B = torch.full((size,), reward, dtype=torch.float32)
    signals = Signals(reward_B, [0] * size, entropy_B=torch.linspace(0, 3, size))
    assert torch.equal(ESTIMATORS[name](signals), torch.zeros(size))


@given(batches(), st.sampled_from(PER_RESPONSE), SIDES)
def test_nothing_but_finite_float32_comes_out(batch, name, sides):
    settings = {"sides": sides} if name == "egpo_calibrated" else {}
    advantage = ESTIMATORS[name](signals_of(batch), **settings)
    assert advantage.dtype == torch.float32
    assert torch.isfinite(advantage).all()
    assert all(math.isfinite(value) for value in explain(name, signals_of(batch), **settings).values())
