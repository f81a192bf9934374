"""Student's t against tables, and its power against drawing it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.comparisons.outcome import TDesign, power_of_t, t_cdf, t_quantile, two_sided_p

TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 30: 2.042, 120: 1.980, 1e9: 1.960}


@pytest.mark.parametrize(("freedom", "value"), TABLE.items())
def test_quantiles_are_those_of_the_tables(freedom, value):
    assert t_quantile(0.975, freedom) == pytest.approx(value, abs=5e-4)
    assert t_quantile(0.025, freedom) == pytest.approx(-value, abs=5e-4)


@given(st.floats(-50, 50), st.floats(0.5, 500))
def test_the_two_sides_mirror_each_other(t, freedom):
    assert t_cdf(t, freedom) + t_cdf(-t, freedom) == pytest.approx(1)
    assert 0 <= two_sided_p(t, freedom) <= 1


@given(st.floats(0.01, 0.99), st.floats(1, 200))
def test_quantile_and_distribution_undo_each_other(share, freedom):
    assert t_cdf(t_quantile(share, freedom), freedom) == pytest.approx(share, abs=1e-9)


def test_one_degree_of_freedom_is_the_cauchy_distribution():
    for t in (-3.0, 0.0, 0.5, 20.0):
        assert t_cdf(t, 1) == pytest.approx(0.5 + np.arctan(t) / np.pi)


def test_power_is_that_of_textbooks_and_of_drawing():
    """17 in each of two groups see one standard deviation with 80.7 % power."""
    assert power_of_t(1.0, np.sqrt(2 / 17), 32, 0.05) == pytest.approx(0.807, abs=0.002)
    rng = np.random.default_rng(0)
    drawn = (rng.normal(2, 1, 200_000)) / np.sqrt(rng.chisquare(3, 200_000) / 3)
    assert power_of_t(2.0, 1.0, 3, 0.05) == pytest.approx(np.mean(abs(drawn) > t_quantile(0.975, 3)), abs=0.005)


def test_without_an_effect_power_is_the_level():
    assert power_of_t(0.0, 1.0, 7, 0.05) == pytest.approx(0.05, abs=5e-4)


def test_what_is_detectable_is_seen_with_80_percent_power_and_nothing_is_where_nothing_scatters():
    design = TDesign(0.7, 9)
    assert design.power(design.detectable(0.05), 0.05) == pytest.approx(0.8, abs=1e-4)
    assert design.detectable(0.01) > design.detectable(0.05)
    assert TDesign(0.0, 9).detectable(0.05) is None
