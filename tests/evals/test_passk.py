"""pass@k is the share of subsets of k that hold a right response: counted here one by one."""

from itertools import combinations
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.errors import InputError
from egpo.evals.intervals import default_ks, pass_at_k, require_ks


def by_brute_force(n, c, k):
    marks = [True] * c + [False] * (n - c)
    return fmean(any(subset) for subset in combinations(marks, k))


def test_it_agrees_with_every_subset():
    cases = [(n, c, k) for n in range(1, 10) for c in range(n + 1) for k in range(1, n + 1)]
    for n, c, k in cases:
        assert pass_at_k([n], [c], k)[0] == pytest.approx(by_brute_force(n, c, k), abs=1e-12)


@given(st.integers(1, 3000), st.data())
def test_it_is_a_share_and_grows_with_k_and_c(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    value = pass_at_k([n], [c], k)[0]
    assert 0 <= value <= 1
    assert pass_at_k([n], [c], 1)[0] == pytest.approx(c / n)
    if k < n:
        assert pass_at_k([n], [c], k + 1)[0] >= value
    if c < n:
        assert pass_at_k([n], [c + 1], k)[0] >= value


def test_it_is_exact_at_its_ends_and_large_counts_do_not_overflow():
    assert pass_at_k([10**6, 10**6], [0, 10**6], 500_000).tolist() == [0.0, 1.0]
    assert pass_at_k([10_000], [1], 5_000)[0] == pytest.approx(0.5)


def test_a_problem_with_too_few_responses_has_none():
    assert np.isnan(pass_at_k([8, 3], [2, 3], 4)).tolist() == [False, True]


@pytest.mark.parametrize(("n", "c", "k"), [(2, 3, 1), (2, -1, 1), (2, 1, 0)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(InputError):
        pass_at_k([n], [c], k)


def test_k_beyond_n_says_which_are_possible():
    with pytest.raises(InputError, match=r"pass@16 cannot be computed from 8 res.*k can be 1 to 8; .*--n 32"):
        require_ks([1, 16, 32], 8)
    with pytest.raises(InputError, match="k can only be 1"):
        require_ks([2], 1)
    assert require_ks([4, 1, 4], 8) == (1, 4)
    assert [default_ks(n) for n in (1, 7, 8)] == [(1,), (1, 2, 4), (1, 2, 4, 8)]
