"""The fit over prompts: its greatest likelihood, and its degenerate ends."""

import numpy as np
import pytest

from egpo.probes.forecast import fit_beta


def fitted(tries, hits, weights=None):
    weight_RP = np.ones((1, len(hits))) if weights is None else np.asarray(weights, dtype=float)
    return fit_beta([tries] * len(hits), hits, weight_RP)


def log_likelihood(a, b, tries, hits):
    def rising(start, count):
        return np.log(start + np.arange(count)).sum()

    return sum(rising(a, c) + rising(b, tries - c) - rising(a + b, tries) for c in hits)


@pytest.mark.parametrize("shape", [(1, 2), (0.3, 0.7), (0.2, 3.0), (8.0, 4.0)])
def test_no_other_parameters_are_likelier(shape):
    rng = np.random.default_rng(0)
    hits = rng.binomial(12, rng.beta(*shape, size=150))
    found = fitted(12, hits)
    a, b = found.a_R[0], found.b_R[0]
    best = log_likelihood(a, b, 12, hits)
    for factor_a in (0.9, 0.99, 1.0, 1.01, 1.1):
        for factor_b in (0.9, 0.99, 1.0, 1.01, 1.1):
            assert log_likelihood(a * factor_a, b * factor_b, 12, hits) <= best + 1e-9


def test_many_prompts_give_the_parameters_back():
    rng = np.random.default_rng(1)
    found = fitted(16, rng.binomial(16, rng.beta(0.5, 2.0, size=20_000)))
    assert (found.a_R[0], found.b_R[0]) == pytest.approx((0.5, 2.0), rel=0.05)


def test_weights_are_repetitions_and_rows_are_apart():
    hits = [0, 1, 5, 8, 3]
    found = fitted(8, hits, [[1, 1, 1, 1, 1], [2, 0, 1, 3, 1]])
    repeated = fitted(8, [0, 0, 5, 8, 8, 8, 3])
    plain = fitted(8, hits)
    assert (found.a_R, found.b_R) == (
        pytest.approx([plain.a_R[0], repeated.a_R[0]]),
        pytest.approx([plain.b_R[0], repeated.b_R[0]]),
    )


def test_hits_and_misses_are_mirror_images():
    hits = np.array([0, 0, 1, 4, 7, 2])
    found, mirrored = fitted(8, hits), fitted(8, 8 - hits)
    assert (found.a_R[0], found.b_R[0]) == pytest.approx((mirrored.b_R[0], mirrored.a_R[0]))


def test_prompts_that_are_all_alike_stay_hits_by_the_power_of_their_share():
    """Each prompt has 4 of 8, less spread than chance: a and b grow without bound, and E[p^3] is p^3."""
    assert fitted(8, [4] * 50).stays_R(0, 3)[0] == pytest.approx(0.5**3, rel=1e-3)


def test_prompts_that_are_all_or_nothing_stay_so():
    assert fitted(8, [0, 8, 8, 0]).stays_R(8, 64)[0] == pytest.approx(1.0, abs=1e-3)
    assert fitted(8, [8, 8]).stays_R(8, 64)[0] == 1
    assert fitted(8, [0, 0]).stays_R(0, 1)[0] == 0


def test_staying_is_a_ratio_of_moments():
    fits = fitted(8, [0, 1, 5, 8, 3, 8])
    draws = np.random.default_rng(0).beta(fits.a_R[0], fits.b_R[0], size=400_000)
    assert fits.stays_R(3, 10)[0] == pytest.approx((draws**10).mean() / (draws**3).mean(), rel=0.01)
    assert fits.stays_R(4, 4)[0] == 1
