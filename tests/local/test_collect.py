import pytest
import torch

from egpo.advantages import ESTIMATORS, Signals
from egpo.config import load_config
from egpo.errors import ConfigError
from egpo.filters import is_constant
from tests.advantages.batches import called
from tests.advantages.test_laws import SHAPED


@pytest.mark.parametrize("estimator", sorted(set(ESTIMATORS) - SHAPED))
def test_constant_groups_are_those_without_an_advantage_under_most_estimators(estimator):
    generator = torch.Generator().manual_seed(0)
    # 0.9 sixteen times over has a mean that is not 0.9 in float32, and 0.1 + 0.2 is not 0.3.
    rewards_PG = [[0.9] * 16, [0.1 + 0.2, 0.3] * 8, [0.0] * 15 + [1.0], torch.rand(16, generator=generator).tolist()]
    reward_B, group_B = torch.tensor(rewards_PG).flatten(), torch.arange(4).repeat_interleave(16)
    constant_B = is_constant(reward_B, group_B)
    assert constant_B.view(4, 16).tolist() == [[True] * 16, [True] * 16, [False] * 16, [False] * 16]
    entropy_B = torch.rand(64, generator=generator)
    advantage = called(estimator, Signals(reward_B, group_B, entropy_B=entropy_B, correct_B=reward_B > 0.5))
    assert advantage[constant_B].eq(0).all()
    assert advantage[~constant_B].reshape(2, -1).ne(0).any(1).all()


@pytest.mark.parametrize("how", ["drop", "replace"])
def test_a_recipe_cannot_drop_the_groups_that_it_wants_to_recover(how):
    words = ["model.path=egpo-tiny", "task.name=countdown", "algorithm.egpo_calibrated.recover=0.5"]
    words += ["algorithm.estimator=egpo_calibrated"]
    assert load_config(overrides=words).algorithm.settings["recover"] == 0.5
    with pytest.raises(ConfigError, match=f"`recover` is 0.5, but `constant_groups: {how}` leaves out the groups"):
        load_config(overrides=[*words, f"algorithm.constant_groups={how}"])


def test_rows_in_any_order_and_groups_of_any_size():
    reward_B = torch.tensor([1.0, 0.0, 1.0, 0.5, 0.0, 1.0])
    group_B = torch.tensor([7, 3, 7, 3, 3, 7])
    assert is_constant(reward_B, group_B).tolist() == [True, False, True, False, False, True]


def test_a_group_one_row_of_which_is_average_is_not_constant():
    assert is_constant(torch.tensor([0.0, 0.5, 1.0]), torch.zeros(3, dtype=torch.long)).tolist() == [False] * 3


def test_no_rows_are_no_groups():
    assert is_constant(torch.zeros(0), torch.zeros(0, dtype=torch.long)).tolist() == []
