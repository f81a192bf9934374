import pytest
import torch

from egpo.advantages import ESTIMATORS, Signals
from egpo.filters import is_constant


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_constant_groups_are_those_without_an_advantage_under_every_estimator(estimator):
    generator = torch.Generator().manual_seed(0)
    # 0.9 sixteen times over has a mean that is not 0.9 in float32, and 0.1 + 0.2 is not 0.3.
    rewards_PG = [[0.9] * 16, [0.1 + 0.2, 0.3] * 8, [0.0] * 15 + [1.0], torch.rand(16, generator=generator).tolist()]
    reward_B, group_B = torch.tensor(rewards_PG).flatten(), torch.arange(4).repeat_interleave(16)
    constant_B = is_constant(reward_B, group_B)
    assert constant_B.view(4, 16).tolist() == [[True] * 16, [True] * 16, [False] * 16, [False] * 16]
    entropy_B = torch.rand(64, generator=generator)
    advantage_B = ESTIMATORS[estimator](Signals(reward_B, group_B, entropy_B=entropy_B, correct_B=reward_B > 0.5))
    assert advantage_B[constant_B].eq(0).all()
    assert advantage_B[~constant_B].view(2, 16).ne(0).any(1).all()


def test_rows_in_any_order_and_groups_of_any_size():
    reward_B = torch.tensor([1.0, 0.0, 1.0, 0.5, 0.0, 1.0])
    group_B = torch.tensor([7, 3, 7, 3, 3, 7])
    assert is_constant(reward_B, group_B).tolist() == [True, False, True, False, False, True]


def test_a_group_one_row_of_which_is_average_is_not_constant():
    assert is_constant(torch.tensor([0.0, 0.5, 1.0]), torch.zeros(3, dtype=torch.long)).tolist() == [False] * 3


def test_no_rows_are_no_groups():
    assert is_constant(torch.zeros(0), torch.zeros(0, dtype=torch.long)).tolist() == []
