"""Rows of a batch, split between cores."""

from hypothesis import given
from hypothesis import strategies as st

from egpo.local.sampling.sample import split_rows

counts = st.integers(1, 40)


@given(counts, counts, st.integers(1, 8))
def test_every_row_is_in_one_share_in_order(num_problems, group, sides):
    shares = split_rows(num_problems, group, sides)
    assert [row for share in shares for row in share] == list(range(num_problems * group))
    assert len(shares) <= sides
    assert all(shares)


@given(st.integers(8, 40), counts, st.integers(1, 8))
def test_groups_stay_whole_where_there_are_enough(num_problems, group, sides):
    shares = split_rows(num_problems, group, sides)
    assert all(share[0] % group == 0 for share in shares)
    sizes = [len(share) // group for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_one_group_is_cut_and_a_few_rows_are_not_worth_it():
    assert [len(share) for share in split_rows(1, 64, 2)] == [32, 32]
    assert [len(share) for share in split_rows(3, 4, 2)] == [12]
