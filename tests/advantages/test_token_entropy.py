"""The bonus of each token's entropy: laws, and a slow reference."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from egpo.advantages import Signals, grpo, token_entropy


def batch_of(seed, groups=3, n=4, width=6):
    generator = torch.Generator().manual_seed(seed)
    rows = groups * n
    reward_B = torch.randint(0, 2, (rows,), generator=generator).double()
    mask_BT = torch.arange(width) < torch.randint(1, width + 1, (rows, 1), generator=generator)
    entropy_BT = 3 * torch.rand(rows, width, generator=generator, dtype=torch.float64) * mask_BT
    return Signals(reward_B, torch.arange(groups).repeat_interleave(n)), entropy_BT, mask_BT


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), alpha=st.floats(0.01, 3), kappa=st.floats(1.1, 5))
def test_it_is_the_formula_token_by_token(seed, alpha, kappa):
    signals, entropy_BT, mask_BT = batch_of(seed)
    found_BT = token_entropy(signals, entropy_BT, mask_BT, alpha=alpha, kappa=kappa)
    base = grpo(signals).tolist()
    for row, advantage in enumerate(base):
        for column in range(mask_BT.shape[1]):
            bonus = min(alpha * float(entropy_BT[row, column]), abs(advantage) / kappa)
            wanted = advantage + bonus if mask_BT[row, column] else 0.0
            assert abs(float(found_BT[row, column]) - wanted) < 1e-12
            assert float(found_BT[row, column]) * advantage >= 0, "a bonus never changes a sign"


def test_without_strength_it_is_grpo_to_the_bit():
    signals, entropy_BT, mask_BT = batch_of(1)
    found_BT = token_entropy(signals, entropy_BT, mask_BT, alpha=0.0)
    assert torch.equal(found_BT, grpo(signals).unsqueeze(1) * mask_BT)


def test_an_entropy_that_is_not_a_number_gives_no_bonus():
    signals, entropy_BT, mask_BT = batch_of(2)
    entropy_BT[mask_BT] = float("nan")
    assert torch.equal(token_entropy(signals, entropy_BT, mask_BT), grpo(signals).unsqueeze(1) * mask_BT)
