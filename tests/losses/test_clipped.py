"""PPO's clipped surrogate."""

import math

import pytest
import torch

from egpo.losses import LOSSES, Clip, LossTokens


def clipped(logp_M, old_logp_M, advantage_M, low, high, dual=None):
    row_M = torch.zeros(len(logp_M), dtype=torch.long)
    return LOSSES["clipped"](LossTokens(logp_M, old_logp_M, advantage_M, row_M), Clip(low, high, dual))


def surrogate_of(ratio, advantage, **settings):
    """The loss of one token, and its derivative by logp."""
    logp_M = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    advantage_M = torch.tensor([advantage], dtype=torch.float64)
    surrogate = clipped(logp_M, torch.zeros_like(advantage_M), advantage_M, **{"low": 0.2, "high": 0.3, **settings})
    (gradient,) = torch.autograd.grad(surrogate.loss_M.sum(), logp_M)
    return surrogate, float(surrogate.loss_M.detach()), float(gradient)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.2, 2.0, -2.4, -2.4),
        (1.5, 2.0, -2.6, 0.0),  # better already: clipped at 1.3
        (0.5, 2.0, -1.0, -1.0),  # worse than it was: never clipped
        (0.5, -2.0, 1.6, 0.0),  # avoided already: clipped at 0.8
        (1.5, -2.0, 3.0, 3.0),
        (5.0, -2.0, 10.0, 10.0),
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_the_four_corners_of_the_clip(ratio, advantage, loss, gradient):
    surrogate, found, slope = surrogate_of(ratio, advantage)
    assert (found, slope) == (pytest.approx(loss), pytest.approx(gradient))
    assert bool(surrogate.clipped_M) == (gradient == 0 and advantage != 0)
    assert not surrogate.capped_M


@pytest.mark.parametrize(("ratio", "advantage", "loss"), [(5.0, -2.0, 6.0), (2.9, -2.0, 5.8), (5.0, 2.0, -2.6)])
def test_dual_clip_bounds_the_loss_of_a_negative_advantage_only(ratio, advantage, loss):
    surrogate, found, slope = surrogate_of(ratio, advantage, dual=3.0)
    assert found == pytest.approx(loss)
    assert bool(surrogate.capped_M) == (ratio > 3 and advantage < 0)
    if surrogate.capped_M:
        assert slope == 0


def test_on_policy_the_gradient_is_that_of_the_advantage_times_logp():
    generator = torch.Generator().manual_seed(0)
    logp_M, advantage_M = torch.randn(20, generator=generator).requires_grad_(), torch.randn(20, generator=generator)
    surrogate = clipped(logp_M, logp_M.detach(), advantage_M, low=0.2, high=0.2, dual=3.0)
    (gradient,) = torch.autograd.grad(surrogate.loss_M.sum(), logp_M)
    torch.testing.assert_close(gradient, -advantage_M)
    torch.testing.assert_close(surrogate.loss_M.detach(), -advantage_M)


def test_a_ratio_out_of_any_bound_stays_finite():
    logp_M = torch.tensor([0.0, 0.0, -500.0, -500.0], requires_grad=True)
    old_M, advantage_M = torch.tensor([-500.0, -500.0, 0.0, 0.0]), torch.tensor([1.0, -1.0, 1.0, -1.0])
    surrogate = clipped(logp_M, old_M, advantage_M, low=0.2, high=0.2)
    (gradient,) = torch.autograd.grad(surrogate.loss_M.sum(), logp_M)
    assert surrogate.loss_M.isfinite().all()
    assert gradient.isfinite().all()


def test_the_figures_are_verls():
    """Made with verl 0.9.1's compute_policy_loss_vanilla: clip 0.2 and 0.28, clip_ratio_c 3, token-mean."""
    old_M = torch.tensor([-0.5, -1.0, -2.0, -0.1, -3.0, -1.5])
    logp_M = torch.tensor([-0.2, -1.6, -0.4, -0.1, -1.0, -1.3])
    advantage_M = torch.tensor([1.0, 1.0, -1.0, -1.0, -0.5, 0.0])
    surrogate = clipped(logp_M, old_M, advantage_M, low=0.2, high=0.28, dual=3.0)
    assert float(surrogate.loss_M.mean()) == pytest.approx(0.6119, abs=5e-5)
    assert float(surrogate.clipped_M.float().mean()) == pytest.approx(1 / 6)
    assert float(surrogate.capped_M.float().mean()) == pytest.approx(1 / 3)
