"""Each method against a slow reference to 1e-9, and what its page says follows from its formula."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from egpo.advantages import (
    Signals,
    canon,
    edge,
    egpo_calibrated,
    explain,
    grpo,
    grpo_s,
    gtpo,
    high_entropy,
    pass_at_k,
    qae,
    rloo,
    token_entropy,
)
from egpo.errors import EgpoWarning
from egpo.losses import LOSSES, Clip, LossTokens
from tests.advantages import reference
from tests.advantages.batches import Batch, batches, tokens_for

pytestmark = pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")

NAN = float("nan")
SEEDS = st.integers(0, 10_000)
COMPARE = st.sampled_from(["apart", "group"])
BINARY = st.sampled_from([0.0, 1.0])


def close(found, expected, tolerance=1e-9):
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


def padded(rows, width):
    return [row + [0.0] * (width - len(row)) for row in rows]


@given(batches())
def test_rloo_equals_the_slow_reference(batch):
    close(rloo(batch.signals()), reference.rloo(batch.rewards, batch.groups))


@given(batches(), st.sampled_from([0.05, 0.2, 0.25, 0.4, 0.5, 0.7, 0.95]), st.booleans())
def test_qae_equals_the_slow_reference(batch, quantile, normalize):
    expected = reference.qae(batch.rewards, batch.groups, quantile, normalize)
    close(qae(batch.signals(), quantile=quantile, normalize=normalize), expected)


@given(batches(), st.integers(1, 5), st.booleans())
def test_pass_at_k_equals_all_subsets(batch, k, normalize):
    expected = reference.pass_at_k(batch.rewards, batch.groups, k, normalize)
    close(pass_at_k(batch.signals(), k=k, normalize=normalize), expected)


@given(batches(), st.sampled_from(["group", "batch"]), st.sampled_from([1e-6, 1e-2]), st.booleans())
def test_edge_equals_the_slow_reference(batch, mean_over, eps, normalize):
    expected = reference.edge(batch.rewards, batch.groups, batch.entropies, mean_over, eps, normalize)
    close(edge(batch.signals(), mean_over=mean_over, eps=eps, normalize=normalize), expected)


@given(batches(), st.floats(0, 1), st.booleans(), SEEDS)
def test_canon_equals_the_slow_reference(batch, mu, normalize, seed):
    generator = torch.Generator().manual_seed(seed)
    rank = torch.randperm(len(batch.rewards), generator=generator).tolist()
    entropies = [h if not math.isfinite(h) else 0.1 + r for h, r in zip(batch.entropies, rank, strict=True)]
    expected = reference.canon(batch.rewards, batch.groups, entropies, mu, normalize)
    close(canon(batch.signals(entropy_B=torch.tensor(entropies).double()), mu=mu, normalize=normalize), expected)


@given(batches(), st.floats(0, 2), st.floats(0, 1), COMPARE, st.sampled_from([1e-6, 1e-2]), st.booleans())
def test_grpo_s_equals_the_slow_reference(batch, alpha1, alpha2, compare, eps, normalize):
    settings = {"alpha1": alpha1, "alpha2": alpha2, "compare": compare, "eps": eps, "normalize": normalize}
    expected = reference.grpo_s(batch.rewards, batch.groups, batch.entropies, batch.correct, **settings)
    close(grpo_s(batch.signals(), **settings), expected, 1e-8)


@given(batches(), SEEDS, st.floats(0, 2), st.floats(0, 1), COMPARE, st.sampled_from([1e-6, 1e-2]), st.booleans())
def test_gtpo_equals_the_slow_reference(batch, seed, alpha1, alpha2, compare, eps, normalize):
    tokens = tokens_for(len(batch.rewards), seed)
    settings = {"alpha1": alpha1, "alpha2": alpha2, "compare": compare, "eps": eps, "normalize": normalize}
    expected = reference.gtpo(batch.rewards, batch.groups, tokens.rows(), batch.correct, **settings)
    found_BT = gtpo(batch.signals(), tokens.entropy_BT, tokens.mask_BT, **settings)
    close(found_BT, padded(expected, found_BT.shape[1]), 1e-8)


@given(batches(), SEEDS, st.sampled_from([0.05, 0.2, 0.5, 0.99, 1.0]), st.booleans())
def test_high_entropy_equals_the_slow_reference(batch, seed, rho, normalize):
    tokens = tokens_for(len(batch.rewards), seed)
    expected = reference.high_entropy(batch.rewards, batch.groups, tokens.rows(), rho, normalize)
    found_BT = high_entropy(batch.signals(), tokens.entropy_BT, tokens.mask_BT, rho=rho, normalize=normalize)
    close(found_BT, padded(expected, found_BT.shape[1]))


@given(batches(), SEEDS, st.floats(0, 3), st.floats(1.1, 5), st.booleans())
def test_token_entropy_equals_the_slow_reference(batch, seed, alpha, kappa, normalize):
    tokens = tokens_for(len(batch.rewards), seed)
    settings = {"alpha": alpha, "kappa": kappa, "normalize": normalize}
    expected = reference.token_entropy(batch.rewards, batch.groups, tokens.rows(), **settings)
    found_BT = token_entropy(batch.signals(), tokens.entropy_BT, tokens.mask_BT, **settings)
    close(found_BT, padded(expected, found_BT.shape[1]))
    assert (found_BT * grpo(batch.signals(), normalize=normalize)[:, None] >= 0).all(), "no sign turns"


# RLOO, QAE, pass@k


@given(batches(min_group=2))
def test_rloo_is_grpo_without_division_times_a_factor_of_the_group_size(batch):
    groups = torch.tensor(batch.groups)
    size_B = torch.stack([(groups == g).sum() for g in groups]).double()
    close(rloo(batch.signals()), grpo(batch.signals(), normalize=False) * size_B / (size_B - 1))
    assert torch.equal(rloo(batch.signals(), normalize=True), rloo(batch.signals(), normalize=False))


@pytest.mark.parametrize("size", [2, 5, 8, 16])
def test_qae_and_its_reference_code_differ_for_one_number_of_right_responses(size):
    differ = {}
    for right in range(size + 1):
        reward_B = torch.tensor([1.0] * right + [0.0] * (size - right))
        code_B = reward_B - torch.quantile(reward_B, 0.4)  # interpolates between two rewards
        ours_B = qae(Signals(reward_B, ["p"] * size), quantile=0.4, normalize=False)
        if not torch.allclose(ours_B.float(), code_B, atol=1e-6):
            differ[right] = code_B[0].item()
    assert len(differ) <= 1
    if size == 8:
        assert differ == {5: pytest.approx(0.2)}


@given(batches(min_group=2, rewards=BINARY), st.sampled_from([0.2, 0.4, 0.5, 0.8]))
def test_qae_trains_on_the_rare_outcome_alone(batch, quantile):
    """Hard problems (p <= 1 - K): right responses alone. Easy ones: wrong responses alone."""
    advantage_B = qae(batch.signals(), quantile=quantile)
    for group in set(batch.groups):
        rows = [i for i, g in enumerate(batch.groups) if g == group]
        p = sum(batch.rewards[i] for i in rows) / len(rows)
        for i in rows:
            if p in (0, 1):
                assert advantage_B[i] == 0
            elif p <= 1 - quantile + 1e-12:
                assert (advantage_B[i] > 0) == (batch.rewards[i] == 1)
                assert advantage_B[i] >= 0
            else:
                assert (advantage_B[i] < 0) == (batch.rewards[i] == 0)
                assert advantage_B[i] <= 0


def test_a_quantile_that_is_no_round_number_in_binary_counts_whole_rows():
    """0.7 * 10 is 7.000000000000001, whose ceiling is 8."""
    signals = Signals(torch.arange(10).double(), [0] * 10)
    assert qae(signals, quantile=0.7, normalize=False).tolist() == [float(r - 6) for r in range(10)]


def paper_pass_at_k(n, c, k):
    """The closed form as the paper and its reference code have it, for rewards 0 and 1 (`calc_adv`)."""
    rho = 1 - math.comb(n - c, k) / math.comb(n, k)
    sigma = math.sqrt(rho * (1 - rho))
    right = (1 - rho) / (sigma + 1e-6)
    # scipy's comb, which the reference code calls, is 0 where n - c - 1 is negative.
    missed = math.comb(n - c - 1, k - 1) / math.comb(n - 1, k - 1) if n > c else 0.0
    return right, (1 - rho - missed) / (sigma + 1e-6)


@given(st.integers(2, 64), st.data())
@example(64, None)
def test_pass_at_k_is_the_papers_closed_form(n, data):
    k, c = (32, 3) if data is None else (data.draw(st.integers(1, n - 1)), data.draw(st.integers(1, n - 1)))
    right, wrong = paper_pass_at_k(n, c, k)
    found = pass_at_k(Signals(torch.tensor([1.0] * c + [0.0] * (n - c)).double(), [0] * n), k=k)
    # Where nearly every subset passes, sigma is far below 1e-6 and what is left of 1 - rho is rounding.
    close(found, [right] * c + [wrong] * (n - c), 1e-6)


@given(batches(min_group=2), st.integers(1, 5))
def test_pass_at_k_sums_to_zero_in_each_group(batch, k):
    advantage_B = pass_at_k(batch.signals(), k=k, normalize=False)
    for group in set(batch.groups):
        assert abs(float(advantage_B[torch.tensor(batch.groups) == group].sum())) < 1e-9


@given(batches(min_group=2))
def test_the_best_of_one_is_grpo_but_for_the_kind_of_standard_deviation(batch):
    close(pass_at_k(batch.signals(), k=1, normalize=False), grpo(batch.signals(), normalize=False))
    groups = torch.tensor(batch.groups)
    size_B = torch.stack([(groups == g).sum() for g in groups]).double()
    close(pass_at_k(batch.signals(), k=1), grpo(batch.signals()) * (size_B / (size_B - 1)).sqrt(), 1e-2)


@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("n", [6, 7, 11, 16, 33])
def test_where_every_subset_has_a_right_response_the_advantage_is_exactly_zero(n, k):
    num_right = n - k + 1
    signals = Signals(torch.tensor([0.9] * num_right + [0.2] * (k - 1)), [0] * n)
    assert not pass_at_k(signals, k=k).any()
    assert explain("pass_at_k", signals, k=k)["egpo/best_of_k/saturated_frac"] == 1.0
    assert pass_at_k(signals, k=k - 1).any()


def test_groups_of_at_most_k_responses_are_named():
    signals = Signals([1.0, 0.0, 1.0, 0.0, 0.0], ["a", "a", "b", "b", "b"])
    with pytest.warns(EgpoWarning, match="1 of 2 groups have at most k = 2 responses and no gradient"):
        advantage_B = pass_at_k(signals, k=2)
    assert advantage_B[:2].tolist() == [0.0, 0.0]
    assert advantage_B[2] > 0 > advantage_B[3]


# CANON


@given(batches(min_group=2), st.booleans())
def test_canon_at_one_half_is_grpo_where_the_halves_are_equal(batch, normalize):
    groups, known = torch.tensor(batch.groups), torch.tensor(batch.entropies).isfinite()
    even_B = torch.stack([known[groups == g].sum() % 2 == 0 for g in groups])
    found_B, expected_B = (
        f(batch.signals(), normalize=normalize) for f in (lambda *a, **k: canon(*a, mu=0.5, **k), grpo)
    )
    whole_B = torch.stack([known[groups == g].all() for g in groups])
    close(found_B[even_B & whole_B], expected_B[even_B & whole_B])


def test_canon_does_not_presume_a_direction():
    """Whichever half is better gets positive advantages."""
    for reward_B in ([1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]):
        signals = Signals(reward_B, [0] * 4, entropy_B=[0.1, 0.2, 0.3, 0.4])
        assert canon(signals, normalize=False).tolist() == [2 * r - 1 for r in reward_B]
        assert canon(signals, mu=0.0).tolist() == [0.0] * 4


def test_rows_of_equal_entropy_at_the_boundary_belong_to_both_halves():
    signals = Signals([1.0, 1.0, 0.0, 0.0], [0] * 4, entropy_B=[0.5] * 4)
    torch.testing.assert_close(canon(signals), grpo(signals))
    # The two in the middle are half in each: upper half (0.5 * 1 + 0.5 * 0 + 0) / 2 = 0.25, lower 0.75.
    signals = Signals([1.0, 1.0, 0.0, 0.0], [0] * 4, entropy_B=[0.1, 0.5, 0.5, 0.9])
    assert canon(signals, normalize=False).tolist() == pytest.approx([0.75, 0.5, -0.5, -0.75])


# EDGE and EGPO calibrated


@given(batches(entropies=st.just(0.7)), st.sampled_from(["group", "batch"]))
def test_edge_with_equal_entropies_is_grpo(batch, mean_over):
    close(edge(batch.signals(), mean_over=mean_over), grpo(batch.signals()), 1e-5)


@given(batches(entropies=st.floats(0.25, 2, width=32)))
def test_edge_within_the_clip_is_egpo_calibrated(batch):
    calibrated = egpo_calibrated(batch.signals(), lambda_min=0.0, lambda_max=100.0)
    close(edge(batch.signals()), calibrated, 1e-9)


@given(batches(), st.sampled_from(["group", "batch"]))
def test_edge_turns_no_sign(batch, mean_over):
    # A weight of exactly 0 needs a mean of 0: then it is GRPO's advantage that vanishes.
    advantage_B, base_B = edge(batch.signals(), mean_over=mean_over), grpo(batch.signals())
    assert (advantage_B * base_B >= 0).all()


@given(
    batches(min_group=2, rewards=BINARY), st.floats(0.01, 2), st.sampled_from(["both", "asymmetric", "positive_only"])
)
def test_recovered_groups_are_those_that_are_all_wrong(batch, recover, sides):
    batch = Batch(batch.rewards, batch.groups, batch.entropies, [r == 1 for r in batch.rewards])
    settings = {"lambda_min": 0.5, "lambda_max": 2.0, "eps": 1e-6, "sides": sides}
    found_B = egpo_calibrated(batch.signals(), recover=recover, **settings)
    close(
        found_B,
        reference.egpo_calibrated(
            batch.rewards, batch.groups, batch.entropies, batch.correct, **settings, recover=recover
        ),
    )
    plain_B = egpo_calibrated(batch.signals(), **settings)
    changed_B = found_B != plain_B
    for group in set(batch.groups):
        rows = torch.tensor(batch.groups) == group
        wrong = not any(r for r, g in zip(batch.rewards, batch.groups, strict=True) if g == group)
        assert bool(changed_B[rows].all()) if wrong else not bool(changed_B[rows].any())
        assert not wrong or bool((found_B[rows] < 0).all())


def test_a_group_that_is_all_wrong_with_different_rewards_is_left_to_grpo():
    signals = Signals([0.1, 0.0, 0.1, 0.0], [0] * 4, entropy_B=[0.5] * 4, correct_B=[False] * 4)
    assert torch.equal(egpo_calibrated(signals, recover=1.0), egpo_calibrated(signals))
    assert explain("egpo_calibrated", signals, recover=1.0)["egpo/recovered_frac"] == 0.0


# GTPO and GRPO-S


@given(batches(min_group=2, rewards=BINARY))
def test_grpo_s_without_strength_is_grpo_if_compared_with_the_group(batch):
    """On rewards 1 and -1: GRPO of rewards 1 and 0, but for eps, which weighs half as much."""
    batch = Batch(batch.rewards, batch.groups, batch.entropies, [r == 1 for r in batch.rewards])
    close(grpo_s(batch.signals(), alpha2=0.0, compare="group"), grpo(batch.signals()), 1e-5)


@given(batches(), SEEDS)
def test_without_strength_the_sides_apart_have_no_gradient(batch, seed):
    """The reward is the same for all of a side, so that nothing but entropy tells its members apart."""
    batch = Batch([float(c) for c in batch.correct], batch.groups, batch.entropies, batch.correct)
    tokens = tokens_for(len(batch.rewards), seed)
    assert not grpo_s(batch.signals(), alpha2=0.0).any()
    assert not gtpo(batch.signals(), tokens.entropy_BT, tokens.mask_BT, alpha2=0.0).any()


@given(batches(), SEEDS, st.booleans())
def test_each_side_apart_has_the_mean_zero(batch, seed, normalize):
    tokens, signals = tokens_for(len(batch.rewards), seed), batch.signals()
    by_row_B = grpo_s(signals, normalize=normalize)
    by_token_BT = gtpo(signals, tokens.entropy_BT, tokens.mask_BT, normalize=normalize)
    for group, right in {*zip(batch.groups, batch.correct, strict=True)}:
        rows = (signals.group_B == group) & (signals.correct_B == right)
        assert abs(float(by_row_B[rows].sum())) < 1e-7
        assert abs(float(by_token_BT[rows].sum())) < 1e-6


def test_right_tokens_gain_with_entropy_and_wrong_ones_lose_with_confidence():
    signals = Signals([1.0, 1.0, 0.0, 0.0], [0] * 4, entropy_B=[0.5, 1.5, 0.5, 1.5], correct_B=[1, 1, 0, 0])
    rows = grpo_s(signals)
    assert rows[1] > rows[0]
    assert rows[2] < rows[3]
    entropy_BT = torch.tensor([[0.5, 1.0], [1.5, 1.0], [0.5, 1.0], [1.5, 1.0]])
    tokens = gtpo(signals, entropy_BT, torch.ones(4, 2, dtype=torch.bool))
    assert tokens[1, 0] > tokens[0, 0]
    assert tokens[2, 0] < tokens[3, 0]
    assert tokens[:, 1].abs().max() < 1e-6, "equal entropies at a position give the mean"


@given(batches(rewards=BINARY), SEEDS)
def test_shares_with_weights_of_sum_one_keep_the_sum_of_the_rewards(batch, seed):
    """The paper's proposition: alpha1 + alpha2 = 1 keeps the sum of the token rewards at each position."""
    batch = Batch([float(c) for c in batch.correct], batch.groups, batch.entropies, batch.correct)
    tokens = tokens_for(len(batch.rewards), seed, missing=False)
    entropy_BT = tokens.entropy_BT.clamp(min=1e-3)
    settings = {"alpha1": 0.7, "alpha2": 0.3, "compare": "group", "normalize": False}
    found_BT = gtpo(batch.signals(), entropy_BT, tokens.mask_BT, **settings)
    plain_BT = gtpo(batch.signals(), entropy_BT, tokens.mask_BT, **{**settings, "alpha1": 1.0, "alpha2": 0.0})
    for group, right in {*zip(batch.groups, batch.correct, strict=True)}:
        rows = torch.tensor([g == group and c == right for g, c in zip(batch.groups, batch.correct, strict=True)])
        close(found_BT[rows].sum(0), plain_BT[rows].sum(0), 1e-8)


# 80/20


def trl_high_entropy_mask(entropies, mask, threshold):
    """TRL's `GRPOTrainer.get_high_entropy_mask`, for one process."""
    gathered = entropies[mask.bool()].float()
    if gathered.numel() == 0:
        return torch.zeros_like(entropies, dtype=torch.bool)
    return (entropies * mask.float() >= torch.quantile(gathered, threshold)) & mask.bool()


@given(SEEDS, st.sampled_from([0.05, 0.2, 0.5, 0.8, 1.0]))
def test_high_entropy_keeps_the_tokens_that_trl_keeps(seed, rho):
    """TRL: `top_entropy_quantile`. In float32, as TRL has it; no two entropies are so close that rounding matters."""
    tokens = tokens_for(12, seed, missing=False)
    entropy_BT = (tokens.entropy_BT * 1000).round().float()
    signals = Signals([1.0, 0.0] * 6, [0] * 12)
    found_BT = high_entropy(signals, entropy_BT, tokens.mask_BT, rho=rho)
    expected_BT = trl_high_entropy_mask(entropy_BT, tokens.mask_BT, 1 - rho)
    # A quantile on the border of two values may round to either side of a whole number.
    place = (1 - rho) * (int(tokens.mask_BT.sum()) - 1)
    if abs(place - round(place)) > 1e-3 or rho == 1.0:
        assert torch.equal(found_BT != 0, expected_BT)
    assert torch.equal(found_BT[found_BT != 0], grpo(signals)[:, None].expand_as(found_BT)[found_BT != 0])


@given(batches(), SEEDS)
def test_all_tokens_kept_are_grpo_to_the_bit(batch, seed):
    tokens, signals = tokens_for(len(batch.rewards), seed), batch.signals()
    found_BT = high_entropy(signals, tokens.entropy_BT, tokens.mask_BT, rho=1.0)
    assert torch.equal(found_BT, grpo(signals)[:, None] * tokens.mask_BT)


@pytest.mark.parametrize("loss", ["clipped"])
@given(seed=SEEDS)
def test_an_advantage_of_zero_is_a_loss_without_the_token(loss, seed):
    """The paper masks the loss and divides by all tokens: the same value and the same gradient."""
    tokens = tokens_for(8, seed, missing=False)
    signals = Signals([1.0, 0.0] * 4, [0] * 8)
    found_BT = high_entropy(signals, tokens.entropy_BT.float(), tokens.mask_BT)
    kept_M = (found_BT != 0)[tokens.mask_BT]
    row_M = torch.arange(8)[:, None].expand_as(tokens.mask_BT)[tokens.mask_BT]
    generator = torch.Generator().manual_seed(seed)
    old_M = -torch.rand(len(row_M), generator=generator)
    new_M = old_M + 0.4 * torch.randn(len(row_M), generator=generator)
    outcomes = []
    for advantage_M, weight_M in (
        (found_BT[tokens.mask_BT], torch.ones(len(row_M))),
        ((grpo(signals)[:, None] * tokens.mask_BT)[tokens.mask_BT], kept_M.float()),
    ):
        logp_M = new_M.clone().requires_grad_()
        loss_M = LOSSES[loss](LossTokens(logp_M, old_M, advantage_M, row_M), Clip(0.2, 0.28)).loss_M
        mean = (loss_M * weight_M).sum() / len(row_M)
        mean.backward()
        outcomes.append((mean.detach(), logp_M.grad))
    torch.testing.assert_close(outcomes[0][0], outcomes[1][0])
    torch.testing.assert_close(outcomes[0][1], outcomes[1][1])
    assert kept_M.sum() < len(kept_M)


def test_a_batch_without_tokens_has_no_advantages():
    signals = Signals([1.0, 0.0], [0, 0], correct_B=[True, False])
    nothing_BT = torch.zeros(2, 3, dtype=torch.bool)
    for function in (high_entropy, token_entropy, gtpo):
        assert not function(signals, torch.full((2, 3), NAN), nothing_BT, metrics={}).any()
