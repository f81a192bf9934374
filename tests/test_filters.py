"""Filters: which groups are not wanted."""

import pytest
import torch

from egpo.config import load_config
from egpo.errors import ConfigError, InputError
from egpo.filters import FILTERS, filter_named

REWARD_B = torch.tensor([1.0, 0.9, 0.0, -0.5, 1.0, 0.0, 0.5, 0.5])
CORRECT_B = torch.tensor([True, True, False, False, True, False, True, False])
GROUP_B = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])


def rewarded_below_half(reward_B, group_B, correct_B):
    """Groups whose best reward is below a half."""
    best = {group: max(reward_B[group_B == group].tolist()) for group in group_B.tolist()}
    return torch.tensor([best[group] < 0.5 for group in group_B.tolist()])


def only_first(reward_B, group_B, correct_B):
    return torch.arange(len(reward_B)) == 0


def a_list(reward_B, group_B, correct_B):
    return [False] * len(reward_B)


@pytest.mark.parametrize(
    ("name", "groups"),
    [("constant", [3]), ("all_or_none", [0, 1]), ("tests.test_filters:rewarded_below_half", [1])],
)
def test_the_groups_that_a_filter_finds(name, groups):
    unwanted_B = filter_named(name)(REWARD_B, GROUP_B, CORRECT_B)
    assert sorted(set(GROUP_B[unwanted_B].tolist())) == groups
    assert torch.equal(unwanted_B, torch.isin(GROUP_B, torch.tensor(groups)))


@pytest.mark.parametrize("name", FILTERS)
def test_the_order_of_rows_does_not_matter(name):
    order = torch.tensor([5, 0, 7, 2, 4, 1, 6, 3])
    found_B = FILTERS[name](REWARD_B[order], GROUP_B[order], CORRECT_B[order])
    assert torch.equal(found_B, FILTERS[name](REWARD_B, GROUP_B, CORRECT_B)[order])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests.test_filters:only_first", "some responses of a group"),
        ("tests.test_filters:a_list", "returned list"),
        ("tests.test_filters:nothing", "has no filter `nothing`"),
        ("constand", "did you mean `constant`"),
    ],
)
def test_a_wrong_filter_is_one_line(name, message):
    with pytest.raises(InputError, match=message):
        filter_named(name)(REWARD_B, GROUP_B, CORRECT_B)


def test_a_recipe_names_it():
    words = ["model.path=egpo-tiny", "task.name=countdown"]
    assert load_config(overrides=[*words, "algorithm.filter=a:b"]).algorithm.filter == "a:b"
    with pytest.raises(ConfigError, match="did you mean `all_or_none`"):
        load_config(overrides=[*words, "algorithm.filter=all_or_non"])
