"""Holm's correction: by hand, and its promise by simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.comparisons.result import holm

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def test_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.2]) == [0.2]
    assert holm([]) == []
    assert holm([0.6, 0.9]) == [1.0, 1.0]


@given(P_VALUES)
def test_it_never_lowers_a_p_value_and_keeps_their_order(p_values):
    adjusted = holm(p_values)
    assert all(before <= after <= 1 for before, after in zip(p_values, adjusted, strict=True))
    order = np.argsort(p_values, kind="stable")
    assert np.all(np.diff(np.array(adjusted)[order]) >= 0)


def test_six_comparisons_of_equals_cry_wolf_together_as_often_as_one_may():
    p_values = np.random.default_rng(0).random((20_000, 6))
    assert np.mean([min(holm(row)) < 0.05 for row in p_values.tolist()]) == pytest.approx(0.05, abs=0.005)
    assert np.mean(p_values.min(1) < 0.05) > 0.25
