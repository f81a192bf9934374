"""Laws that every loss form of the table obeys."""

import math
from dataclasses import replace

import pytest
import torch

from egpo.losses import LOSSES, Clip, LossTokens
from tests.losses.token_batches import loss_and_gradient, marked, tokens_of

OFF = {"clip_cov": {"ratio": 0.0}, "kl_cov": {"ratio": 0.0}}
"""Settings at which a form's own part is off; the other forms have none."""
WIDE = Clip(0.999999, 1e9)


@pytest.mark.parametrize("name", LOSSES)
def test_on_policy_and_without_its_own_part_the_gradient_is_minus_the_advantage(name):
    tokens = tokens_of(spread=0.0)
    _, gradient_M = loss_and_gradient(name, tokens, **OFF.get(name, {}))
    torch.testing.assert_close(gradient_M, -tokens.advantage_M)


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
@pytest.mark.parametrize("seed", range(5))
def test_at_zero_strength_it_is_the_clipped_surrogate(name, seed):
    """KL-Cov has no clip: it is the surrogate whose clip is wide."""
    tokens = tokens_of(seed)
    clip = WIDE if name == "kl_cov" else Clip(0.1, 0.2, 1.5)
    one, gradient_M = loss_and_gradient(name, tokens, clip, **OFF[name])
    other, plain_M = loss_and_gradient("clipped", tokens, clip)
    assert torch.equal(one.loss_M, other.loss_M)
    assert torch.equal(gradient_M, plain_M)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("gap", [0.0, 1e-9, 5.0, 500.0, -500.0])
def test_loss_and_gradient_are_finite(name, gap):
    tokens = tokens_of(dtype=torch.float32)
    far = replace(tokens, old_logp_M=tokens.logp_M.detach() - gap)
    found, gradient_M = loss_and_gradient(name, far)
    assert found.loss_M.isfinite().all()
    assert gradient_M.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_no_tokens_are_no_loss(name):
    nothing = torch.zeros(0, requires_grad=True)
    tokens = LossTokens(nothing, torch.zeros(0), torch.zeros(0), torch.zeros(0, dtype=torch.long))
    found = LOSSES[name](marked(name, tokens), Clip())
    assert found.loss_M.shape == found.clipped_M.shape == (0,)


@pytest.mark.parametrize("name", LOSSES)
def test_without_an_advantage_and_a_chosen_token_there_is_no_loss(name):
    """The update leaves such rows out."""
    tokens = replace(tokens_of(), advantage_M=torch.zeros_like(tokens_of().advantage_M))
    found = LOSSES[name](tokens, Clip())
    assert found.loss_M.eq(0).all()
    assert not (found.clipped_M | found.capped_M).any()


@pytest.mark.parametrize("name", LOSSES)
def test_responses_may_be_cut_into_any_parts(name):
    """What a form chooses is chosen before the cut, so that a part of whole responses has the same loss."""
    tokens = marked(name, tokens_of(3))
    whole = LOSSES[name](tokens, Clip()).loss_M
    parts = []
    for rows in ([0, 1], [2], [3, 4]):
        here_M = torch.isin(tokens.row_M, torch.tensor(rows))
        part = LossTokens(
            tokens.logp_M[here_M],
            tokens.old_logp_M[here_M],
            tokens.advantage_M[here_M],
            tokens.row_M[here_M] - rows[0],
            None if tokens.marked_M is None else tokens.marked_M[here_M],
        )
        parts.append(LOSSES[name](part, Clip()).loss_M)
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_is_that_of_finite_differences(name):
    """CISPO's and GSPO's weights are constants to the gradient: they have tests of their own."""
    if name in ("cispo", "gspo"):
        return
    tokens = marked(name, tokens_of(1))
    # Away from the corners of the clip.
    near = (math.log(0.8), math.log(1.2), 0.0)
    gap_M = (tokens.logp_M - tokens.old_logp_M).detach()
    assert min(float((gap_M - bound).abs().min()) for bound in near) > 1e-4
    assert torch.autograd.gradcheck(
        lambda logp_M: LOSSES[name](replace(tokens, logp_M=logp_M), Clip()).loss_M, (tokens.logp_M,), eps=1e-7
    )
