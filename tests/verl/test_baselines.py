"""The baselines that verl has too: `rloo` is the same, `grpo_passk` is another method than `pass_at_k`."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("verl")
pytestmark = [pytest.mark.verl, pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")]

from verl.trainer.config import AlgoConfig  # noqa: E402
from verl.trainer.ppo import core_algos  # noqa: E402

from egpo.advantages import Signals, pass_at_k, rloo  # noqa: E402
from tests.advantages.batches import batches  # noqa: E402


def theirs(function, rewards, groups, **settings):
    """Their estimators, in float64, on responses of one token."""
    reward_BT = torch.tensor(rewards, dtype=torch.float64)[:, None]
    advantage_BT, _ = function(reward_BT, torch.ones_like(reward_BT), np.array(groups, dtype=object), **settings)
    return advantage_BT[:, 0]


@pytest.mark.parametrize("name", ["compute_rloo_outcome_advantage", "compute_rloo_vectorized_outcome_advantage"])
@settings(max_examples=200)
@given(batch=batches())
def test_rloo_is_verl_s(name, batch):
    expected_B = theirs(getattr(core_algos, name), batch.rewards, [f"uid-{g}" for g in batch.groups])
    ours_B = rloo(batch.signals())
    if "vectorized" in name:  # of a group of one row it returns 0, and the other one the reward
        alone_B = torch.tensor([batch.groups.count(g) == 1 for g in batch.groups])
        expected_B, ours_B = expected_B[~alone_B], ours_B[~alone_B]
    torch.testing.assert_close(ours_B, expected_B, rtol=1e-6, atol=1e-6)


@given(st.integers(3, 8), st.integers(1, 7), st.integers(2, 4))
def test_verl_s_grpo_passk_is_another_method(n, right, k):
    """It rewards the best response by its distance to the second best: with two right ones nothing is left."""
    right, k = min(right, n - 1), min(k, n - 1)
    rewards = [1.0] * right + [0.0] * (n - right)
    found_B = theirs(core_algos.compute_grpo_passk_outcome_advantage, rewards, ["a"] * n, config=AlgoConfig())
    assert found_B[1:].eq(0).all()
    assert bool(found_B[0] > 0) == (right == 1)
    ours_B = pass_at_k(Signals(torch.tensor(rewards).double(), [0] * n), k=k)
    assert bool((ours_B[:right] > 0).all()) == (right <= n - k)
