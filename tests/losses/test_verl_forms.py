"""Loss forms against verl's own, in value and gradient. Runs where verl is installed (`.env-verl`)."""

from dataclasses import replace

import pytest
import torch

from egpo.local.updates.losses import importance_weights, token_weights
from egpo.losses import LOSSES, Clip
from tests.losses.token_batches import as_mini_batch, tokens_of

pytest.importorskip("verl")
pytestmark = pytest.mark.verl

from verl.trainer.ppo import core_algos, rollout_corr_helper  # noqa: E402
from verl.workers.config import FSDPActorConfig, PolicyLossConfig  # noqa: E402

LENGTHS = (7, 1, 5, 12, 3)
AGGREGATIONS = {"token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean"}
CLIPS = {"gspo": (0.02, 0.03)}
"""A response's ratio is a mean, and near 1. The other forms have 0.2 and 0.28."""


def clip_for(name):
    return CLIPS.get(name, (0.2, 0.28))


def padded(value_M, row_M):
    value_RT = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=value_M.dtype)
    value_RT[mask()] = value_M
    return value_RT


def mask():
    return torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]


def config(name, **settings):
    policy_loss = PolicyLossConfig(loss_mode=name, **settings)
    return FSDPActorConfig(
        strategy="fsdp2",
        clip_ratio=clip_for(name)[0],
        clip_ratio_low=clip_for(name)[0],
        clip_ratio_high=clip_for(name)[1],
        clip_ratio_c=1e9,  # verl's dual clip cannot be switched off
        policy_loss=policy_loss,
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
    )


def verls(name, tokens, aggregation, **settings):
    logp_M = tokens.logp_M.detach().clone().requires_grad_()
    loss, metrics = core_algos.get_policy_loss_fn(name)(
        old_log_prob=padded(tokens.old_logp_M, tokens.row_M),
        log_prob=padded(logp_M, tokens.row_M),
        advantages=padded(tokens.advantage_M, tokens.row_M),
        response_mask=mask().double(),
        loss_agg_mode=AGGREGATIONS[aggregation],
        config=config(name, **settings),
    )
    (gradient_M,) = torch.autograd.grad(loss, logp_M)
    return loss.detach(), gradient_M, metrics


def ours(name, tokens, aggregation, **settings):
    weight_M = token_weights(torch.tensor(LENGTHS), aggregation, 12).double()[tokens.row_M]
    found = LOSSES[name](tokens, Clip(*clip_for(name)), **settings)
    loss = (weight_M * found.loss_M).sum()
    (gradient_M,) = torch.autograd.grad(loss, tokens.logp_M)
    return loss.detach(), gradient_M, found


def assert_equal(one, other):
    for mine, theirs in zip(one[:2], other[:2], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("name", "theirs"), [("clipped", "vanilla"), ("gspo", "gspo"), ("cispo", "cispo")])
def test_a_form_without_a_choice_is_verls(name, theirs, aggregation, seed):
    tokens = tokens_of(seed, spread=0.4, lengths=LENGTHS)
    mine, other = ours(name, tokens, aggregation), verls(theirs, tokens, aggregation)
    assert_equal(mine, other)
    assert float(mine[2].clipped_M.double().mean()) == pytest.approx(other[2]["actor/pg_clipfrac"], abs=1e-6)
    assert mine[2].clipped_M.any() or seed == 2  # where no advantage of GSPO has the sign that is clipped


def with_choice(name, tokens, **settings):
    """verl chooses with the current log-probabilities, ours with the old ones: here both choose with the current."""
    batch = replace(as_mini_batch(tokens), old_logp_K=tokens.logp_M.detach())
    return replace(tokens, marked_M=LOSSES[name].mark(batch, **settings))


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_kl_cov_is_verls(aggregation, seed, spread):
    tokens = with_choice("kl_cov", tokens_of(seed, spread, LENGTHS), ratio=0.2)
    mine = ours("kl_cov", tokens, aggregation, ratio=0.2, weight=0.3, tolerance=0.0)
    assert_equal(mine, verls("kl_cov", tokens, aggregation, kl_cov_ratio=0.2, ppo_kl_coef=0.3))


def test_on_policy_kl_cov_chooses_as_verl_does():
    """The old and the current log-probabilities are then the same, and nothing is arranged."""
    tokens = tokens_of(2, 0.0, LENGTHS)
    tokens = replace(tokens, marked_M=LOSSES["kl_cov"].mark(as_mini_batch(tokens), ratio=0.2))
    assert_equal(
        ours("kl_cov", tokens, "token_mean", ratio=0.2, weight=0.3, tolerance=0.0),
        verls("kl_cov", tokens, "token_mean", kl_cov_ratio=0.2, ppo_kl_coef=0.3),
    )


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [0.0, 0.02])
def test_clip_cov_is_verls_where_every_eligible_token_is_drawn(aggregation, seed, spread):
    """The draws are other random numbers. With a ratio of 1 all tokens in the range lose their gradient in both."""
    settings = {"ratio": 1.0, "lower": 0.05, "upper": 3.0}
    tokens = with_choice("clip_cov", tokens_of(seed, spread, LENGTHS), **settings)
    mine = ours("clip_cov", tokens, aggregation, **settings)
    other = verls("clip_cov", tokens, aggregation, clip_cov_ratio=1.0, clip_cov_lb=0.05, clip_cov_ub=3.0)
    assert tokens.marked_M.any()
    assert_equal(mine, other)
    assert float(tokens.marked_M.double().mean()) == pytest.approx(other[2]["actor/pg_clipfrac"], abs=1e-6)


@pytest.mark.parametrize("ratio", [0.05, 0.2])
def test_clip_cov_drops_as_many_tokens_as_verl(ratio):
    tokens = with_choice("clip_cov", tokens_of(1, 0.0, LENGTHS), ratio=ratio, lower=0.0, upper=9.0)
    other = verls("clip_cov", tokens, "token_mean", clip_cov_ratio=ratio, clip_cov_lb=0.0, clip_cov_ub=9.0)
    assert float(tokens.marked_M.double().mean()) == pytest.approx(other[2]["actor/pg_clipfrac"], abs=1e-6)


@pytest.mark.parametrize("cap", [0.5, 1.0, 2.0, 1e9])
def test_importance_weights_are_those_of_verls_token_truncation(cap):
    tokens = tokens_of(4, 2.0, LENGTHS)
    log_ratio_RT = padded((tokens.logp_M - tokens.old_logp_M).detach(), tokens.row_M)
    theirs_RT, _ = rollout_corr_helper.compute_rollout_correction_weights(
        log_ratio_RT, mask().double(), rollout_is="token", rollout_is_threshold=cap
    )
    mine_M = importance_weights(tokens.logp_M, tokens.old_logp_M, cap)
    assert not mine_M.requires_grad
    torch.testing.assert_close(mine_M, theirs_RT[mask()], rtol=0, atol=1e-12)
