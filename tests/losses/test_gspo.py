"""GSPO: one ratio per response, with the gradient of each token's own log-probability."""

import torch

from egpo.losses import LOSSES, Clip, LossTokens

LENGTHS = (3, 1, 5)
WIDE = Clip(0.9, 9.0)


def tokens_of(seed=0, spread=0.3):
    generator = torch.Generator().manual_seed(seed)
    row_M = torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS))
    logp_M = -torch.rand(len(row_M), generator=generator, dtype=torch.float64)
    old_M = logp_M + spread * torch.randn(len(row_M), generator=generator, dtype=torch.float64)
    advantage_M = torch.tensor([1.5, -0.5, 0.7], dtype=torch.float64)[row_M]
    return LossTokens(logp_M.requires_grad_(), old_M, advantage_M, row_M)


def test_the_value_and_the_gradient_are_those_of_the_definition():
    """The paper's gradient (its equation 10): with the mean over a response's tokens, s * A * mean of grad logp."""
    tokens = tokens_of()
    found = LOSSES["gspo"](tokens, WIDE)
    (gradient_M,) = torch.autograd.grad(found.loss_M.sum(), tokens.logp_M)
    start = 0
    for length in LENGTHS:
        part = slice(start, start + length)
        logp_M = tokens.logp_M[part].detach().requires_grad_()
        ratio = (logp_M - tokens.old_logp_M[part]).mean().exp()
        loss = -ratio * tokens.advantage_M[start]
        (plain_M,) = torch.autograd.grad(loss, logp_M)
        torch.testing.assert_close(found.loss_M[part], loss.detach().expand(length), rtol=0, atol=1e-12)
        torch.testing.assert_close(gradient_M[part] / length, plain_M, rtol=0, atol=1e-12)
        start += length


def test_a_response_is_clipped_as_a_whole():
    found = LOSSES["gspo"](tokens_of(spread=0.5), Clip(1e-4, 1e-4))
    start = 0
    for length in LENGTHS:
        assert len(set(found.clipped_M[start : start + length].tolist())) == 1
        start += length
    assert found.clipped_M.any()


def test_on_policy_it_is_the_clipped_surrogate():
    tokens = tokens_of(spread=0.0)
    one, other = (LOSSES[name](tokens, Clip()) for name in ("gspo", "clipped"))
    torch.testing.assert_close(one.loss_M, other.loss_M)
    gradients = [torch.autograd.grad(found.loss_M.sum(), tokens.logp_M)[0] for found in (one, other)]
    torch.testing.assert_close(*gradients)
