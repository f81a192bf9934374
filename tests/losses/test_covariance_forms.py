"""Clip-Cov and KL-Cov against a slow reference: one loop over tokens in plain Python."""

import statistics

import pytest
import torch

from egpo.errors import ConfigError
from egpo.losses import LOSSES, Clip, MiniBatchTokens
from egpo.losses.clip_cov import covariance, draw, num_chosen
from egpo.losses.kl_cov import largest
from egpo.sections import checked
from tests.losses.token_batches import LENGTHS, as_mini_batch, loss_and_gradient, marked, tokens_of


def slow_covariance(advantages, logps):
    mean_a, mean_l = statistics.fmean(advantages), statistics.fmean(logps)
    return [(a - mean_a) * (logp - mean_l) for a, logp in zip(advantages, logps, strict=True)]


@pytest.mark.parametrize("seed", range(10))
def test_the_covariance_is_that_of_a_loop(seed):
    batch = as_mini_batch(tokens_of(seed))
    expected = slow_covariance(batch.advantage_K.tolist(), batch.old_logp_K.tolist())
    assert covariance(batch).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("ratio", "number"), [(0.0, 0), (1e-9, 1), (2e-4, 1), (0.05, 1), (0.1, 2), (1.0, 28)])
def test_the_fraction_is_rounded_down_and_is_one_token_at_least(ratio, number):
    assert num_chosen(ratio, 28) == number
    assert num_chosen(ratio, 0) == 0


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("ratio", [2e-4, 0.1, 0.5])
def test_clip_cov_draws_within_its_range(seed, ratio):
    batch = as_mini_batch(tokens_of(seed), seed)
    marked_K = draw(batch, ratio=ratio, lower=0.1, upper=1.0)
    covariances = slow_covariance(batch.advantage_K.tolist(), batch.old_logp_K.tolist())
    eligible = [place for place, value in enumerate(covariances) if 0.1 < value < 1.0]
    order = sorted(eligible, key=lambda place: float(batch.uniform_K[place]))
    assert marked_K.nonzero()[:, 0].tolist() == sorted(order[: max(1, int(ratio * sum(LENGTHS)))])


def test_every_eligible_token_is_drawn_equally_often():
    tokens = tokens_of(1)
    times_K = torch.zeros(sum(LENGTHS))
    for seed in range(2000):
        times_K += draw(as_mini_batch(tokens, seed), ratio=0.05, lower=0.1, upper=9.0)
    covariance_K = covariance(as_mini_batch(tokens))
    eligible_K = (covariance_K > 0.1) & (covariance_K < 9.0)
    assert times_K[~eligible_K].eq(0).all()
    expected = 2000 / int(eligible_K.sum())
    assert (times_K[eligible_K] - expected).abs().max() < 5 * expected**0.5  # five standard deviations


@pytest.mark.parametrize("seed", range(10))
def test_kl_cov_takes_the_largest(seed):
    batch = as_mini_batch(tokens_of(seed))
    marked_K = largest(batch, ratio=0.2)
    assert int(marked_K.sum()) == 5
    assert covariance(batch)[marked_K].min() > covariance(batch)[~marked_K].max()


@pytest.mark.parametrize("seed", range(5))
def test_clip_cov_drops_the_gradient_of_drawn_tokens_and_of_no_others(seed):
    tokens, settings = tokens_of(seed), {"ratio": 0.2, "lower": 0.0, "upper": 9.0}
    found, gradient_M = loss_and_gradient("clip_cov", tokens, **settings)
    plain, plain_M = loss_and_gradient("clipped", tokens)
    marked_M = marked("clip_cov", tokens, **settings).marked_M
    assert marked_M.any()
    assert gradient_M[marked_M].eq(0).all()
    assert found.loss_M[marked_M].eq(0).all()
    assert torch.equal(gradient_M[~marked_M], plain_M[~marked_M])
    assert torch.equal(found.loss_M[~marked_M], plain.loss_M[~marked_M])


@pytest.mark.parametrize("seed", range(5))
def test_kl_cov_adds_a_pull_to_the_old_policy_and_has_no_clip(seed):
    tokens, settings = tokens_of(seed, spread=1.0), {"ratio": 0.3, "weight": 0.7}
    found, gradient_M = loss_and_gradient("kl_cov", tokens, Clip(0.01, 0.01), **settings)
    marked_M = marked("kl_cov", tokens, **settings).marked_M.tolist()
    rows = zip(tokens.logp_M.tolist(), tokens.old_logp_M.tolist(), tokens.advantage_M.tolist(), marked_M, strict=True)
    for place, (logp, old, advantage, chosen) in enumerate(rows):
        ratio = torch.tensor(logp - old, dtype=torch.float64).exp().item()
        sign = 1 if logp > old else -1
        assert float(found.loss_M.detach()[place]) == pytest.approx(-advantage * ratio + 0.7 * chosen * abs(logp - old))
        assert float(gradient_M[place]) == pytest.approx(-advantage * ratio + 0.7 * chosen * sign)


def test_rounding_errors_have_no_kl_term():
    tokens = tokens_of(spread=1e-6)
    _, gradient_M = loss_and_gradient("kl_cov", tokens, ratio=1.0, weight=1.0)
    torch.testing.assert_close(gradient_M, -tokens.advantage_M, rtol=1e-5, atol=1e-5)
    _, noisy_M = loss_and_gradient("kl_cov", tokens, ratio=1.0, weight=1.0, tolerance=0.0)
    assert (noisy_M + tokens.advantage_M).abs().min() > 0.9  # a whole gradient for a millionth of a nat


def test_equal_advantages_have_no_covariance():
    batch = MiniBatchTokens(torch.randn(9), torch.ones(9), torch.zeros(9), torch.rand(9))
    assert not draw(batch, lower=0.0, upper=9.0).any()
    assert int(largest(batch, ratio=0.5).sum()) == 4  # all are equal: the first ones


@pytest.mark.parametrize(("name", "wrong"), [("clip_cov", {"upper": 1.0}), ("kl_cov", {"ratio": 1.5})])
def test_wrong_settings_are_refused(name, wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        checked(LOSSES[name].settings, "update", **wrong)
