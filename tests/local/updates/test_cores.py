"""A mini-batch on several cores."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from egpo.local.updates.micro_batches import RowTokens, split_rows
from egpo.local.updates.update import CoreGradients


def row_tokens(lengths, group=2, prompt_length=3):
    problem = [row // group for row in range(len(lengths))]
    prompts = [[0] * prompt_length] * (max(problem, default=0) + 1)
    return RowTokens(prompts, problem, [[0] * length for length in lengths])


@given(st.lists(st.integers(0, 30), max_size=30), st.integers(1, 5))
def test_every_row_that_has_tokens_is_in_one_share(lengths, sides):
    shares = split_rows(range(len(lengths)), row_tokens(lengths), sides)
    rows = sorted(row for share in shares for row in share)
    assert [row for row in rows if lengths[row]] == [row for row, length in enumerate(lengths) if length]
    assert len(rows) == len(set(rows))
    assert len(shares) <= sides


def test_shares_are_of_like_size_and_groups_stay_together():
    shares = split_rows(range(32), row_tokens([10] * 32, group=4), 2)
    assert [len(share) for share in shares] == [16, 16]
    assert not {row // 4 for row in shares[0]} & {row // 4 for row in shares[1]}


def test_a_single_group_is_cut():
    assert [len(share) for share in split_rows(range(8), row_tokens([20] * 8, group=8), 2)] == [4, 4]


def test_gradients_of_shares_add_up_to_those_of_the_whole():
    weight, unused = torch.nn.Parameter(torch.arange(3.0)), torch.nn.Parameter(torch.ones(2))
    frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    owns = [CoreGradients([weight, unused, frozen]) for _ in range(2)]
    for number, own in enumerate(owns):
        own.add((weight**3).sum() * 100)
        own.discard()
        own.add((weight**2).sum() * (number + 1))
        own.add(weight.sum())
        assert weight.grad is None
    for own in owns:
        own.add_to_weights()
    assert weight.grad.tolist() == [2.0, 8.0, 14.0]
    assert unused.grad is None
