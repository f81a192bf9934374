"""The split rule, to the row."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.data.conversion import SplitRule
from egpo.data.splits import choose_rows, split_rows
from egpo.errors import InputError


def test_the_published_check_values():
    split = split_rows(np.arange(1000), 0.05, 42)
    assert (len(split.train), len(split.test)) == (950, 50)
    assert split.test[:5].tolist() == [978, 933, 859, 916, 127]


@given(n=st.integers(2, 300), test_size=st.floats(0.01, 0.9), seed=st.integers(0, 99))
def test_every_row_is_in_one_part(n, test_size, seed):
    if math.ceil(test_size * n) >= n:
        with pytest.raises(InputError, match="rows for training"):
            split_rows(np.arange(n), test_size, seed)
        return
    split = split_rows(np.arange(n), test_size, seed)
    assert sorted([*split.train, *split.test]) == list(range(n))
    assert len(split.test) == math.ceil(test_size * n)
    permutation = np.random.default_rng(seed).permutation(n)
    assert [*split.test, *split.train] == permutation.tolist()


@pytest.mark.parametrize("test_size", [0, 1, -0.1, 1.5, math.nan])
def test_a_fraction_that_is_none(test_size):
    with pytest.raises(InputError, match="between 0 and 1"):
        split_rows(np.arange(10), test_size, 0)


def test_max_samples_takes_the_head_or_a_permutation():
    assert choose_rows(1000, 5, shuffle=False, seed=42).tolist() == [0, 1, 2, 3, 4]
    assert choose_rows(1000, 5, shuffle=True, seed=42).tolist() == [978, 933, 859, 916, 127]
    for limit in (None, 1000, 2000):
        assert choose_rows(1000, limit, shuffle=True, seed=42).tolist() == list(range(1000))
    with pytest.raises(InputError, match="1 or more"):
        choose_rows(10, 0, shuffle=True, seed=0)


def test_a_negative_seed_is_refused():
    for call in (
        lambda: split_rows(np.arange(10), 0.5, -1),
        lambda: choose_rows(10, 5, shuffle=True, seed=-1),
        lambda: SplitRule(seed=-1),
    ):
        with pytest.raises(InputError, match="--seed: the seed -1 is negative"):
            call()
