"""CISPO: the clipped ratio weighs the gradient and never stops it."""

import pytest
import torch

from egpo.losses import Clip
from tests.losses.token_batches import loss_and_gradient, tokens_of


@pytest.mark.parametrize("seed", range(5))
def test_the_gradient_is_the_clipped_ratio_times_the_advantage(seed):
    tokens = tokens_of(seed, spread=1.0)
    found, gradient_M = loss_and_gradient("cispo", tokens, Clip(0.3, 0.5))
    rows = zip(tokens.logp_M.tolist(), tokens.old_logp_M.tolist(), tokens.advantage_M.tolist(), strict=True)
    for place, (logp, old, advantage) in enumerate(rows):
        ratio = torch.tensor(logp - old, dtype=torch.float64).exp().item()
        weight = min(max(ratio, 0.7), 1.5)
        assert float(gradient_M[place]) == pytest.approx(-weight * advantage)
        assert float(found.loss_M.detach()[place]) == pytest.approx(-weight * advantage * logp)
        assert bool(found.clipped_M[place]) == (weight != ratio)
    assert found.clipped_M.any()
    assert gradient_M.ne(0).all()  # PPO's surrogate stops some of them
    assert loss_and_gradient("clipped", tokens, Clip(0.3, 0.5))[1].eq(0).any()
