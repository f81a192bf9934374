"""Our statistics against scipy's, over grids that include the extremes of what can occur.

scipy is a development dependency only: docs/dependencies.md says why. Tolerances are those of our documented
approximations; everything else is held to rounding.
"""

from collections import Counter
from itertools import product

import numpy as np
import pytest

pytest.importorskip("scipy", reason="scipy is a development dependency: pip install '.[dev]'")
from scipy import optimize, special, stats

from egpo.comparisons.mcnemar import Discordance, _binomial, compare_over_problems, mid_p
from egpo.comparisons.outcome import TDesign, chi_over_root_freedom, power_of_t, t_cdf, t_quantile, two_sided_p
from egpo.comparisons.scores import Scores, difference_of_scores
from egpo.comparisons.seeds import compare_over_seeds
from egpo.evals.intervals import SHARES, mean_with_interval, pass_at_k, percentile_tails, resampled_means, student_t
from egpo.evals.paired import mcnemar
from egpo.probes.forecast import agreement_within, fit_beta, reward_variances

FREEDOMS = (0.5, 1, 1.5, 2, 3, 5, 9.5, 30, 100, 1e3, 1e5)
DISTANCES = (0, 1e-12, 1e-6, 0.1, 0.5, 1, 2, 3, 5, 10, 40, 100, 1e3, 1e6, 1e10, 1e150, 1e200)
SHARES_OF_T = (1e-12, 1e-6, 0.001, 0.025, 0.2, 0.6, 0.8, 0.975, 0.995, 1 - 1e-6, 1 - 1e-9)


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_students_t_in_both_tails(freedom):
    for t in DISTANCES:
        assert two_sided_p(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-9, abs=1e-300)
        # scipy's is off by 1.4e-11 at freedom 1 and t = 1e-6, where the distribution is 1/2 + arctan(t) / pi.
        assert t_cdf(t, freedom) == pytest.approx(stats.t.cdf(t, freedom), abs=2e-11)


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_quantiles_of_students_t(freedom):
    for share in SHARES_OF_T:
        assert t_quantile(share, freedom) == pytest.approx(stats.t.ppf(share, freedom), rel=1e-8)
    assert t_quantile(0.5, freedom) == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("freedom", [9.9e6, 1e7, 1e12])
def test_many_degrees_of_freedom_are_the_normal_distribution(freedom):
    """Also far out: p is not 0 where the normal distribution's is not."""
    for t in (0, 0.1, 1, 2, 5, 10, 30):
        assert two_sided_p(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), abs=1e-7)
        assert two_sided_p(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=0.025)
    for share in SHARES_OF_T:
        assert t_quantile(share, freedom) == pytest.approx(stats.t.ppf(share, freedom), rel=2e-6)


@pytest.mark.parametrize(("freedom", "alpha"), list(product((1, 2, 3, 8, 38, 500), (0.05, 0.01, 0.0005))))
def test_the_power_of_a_t_test_is_the_noncentral_t(freedom, alpha):
    """Up to the 200 quantiles of the standard error over which ours is averaged."""
    critical = stats.t.ppf(1 - alpha / 2, freedom)
    for shift in (0, 0.5, 1, 2, 4, 8):
        opposite = stats.nct.cdf(-critical, freedom, shift)  # scipy has NaN for a few that are almost 0
        exact = stats.nct.sf(critical, freedom, shift) + np.nan_to_num(opposite)
        assert power_of_t(shift, 1.0, freedom, alpha) == pytest.approx(exact, abs=0.003 if freedom < 3 else 5e-4)


def test_the_smallest_detectable_difference_is_where_the_noncentral_t_has_80_percent():
    for freedom, alpha in product((4, 18, 198), (0.05, 0.005)):
        critical = stats.t.ppf(1 - alpha / 2, freedom)
        exact = optimize.brentq(lambda s, c=critical, f=freedom: stats.nct.sf(c, f, s) - 0.8, 0.1, 60)
        assert TDesign(0.3, freedom).detectable(alpha) == pytest.approx(0.3 * exact, rel=0.005)


@pytest.mark.parametrize("freedom", [1, 2, 5, 40, 1e4])
def test_the_spread_of_a_standard_error_is_chi(freedom):
    shares = (np.arange(200) + 0.5) / 200
    exact = stats.chi.ppf(shares, freedom) / np.sqrt(freedom)
    assert chi_over_root_freedom(freedom) == pytest.approx(exact, abs=0.006)


def test_mcnemars_tests_are_binomial_tests():
    counts = (0, 1, 2, 3, 7, 20, 99, 500, 3000)
    for lost, won in product(counts, counts):
        if lost + won:
            exact = stats.binomtest(lost, lost + won, 0.5).pvalue
            assert mcnemar(lost, won) == pytest.approx(exact, rel=1e-9, abs=1e-300)
        if lost != won:
            tosses = stats.binom(lost + won, 0.5)
            fewer = min(lost, won)
            expected = 2 * tosses.cdf(fewer - 1) + tosses.pmf(fewer)
            assert mid_p(lost, won) == pytest.approx(expected, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("n", [1, 2, 17, 500, 20_000])
def test_binomial_probabilities(n):
    for p in (0, 1e-9, 0.01, 0.5, 0.97, 1 - 1e-9, 1):
        assert _binomial(n, p) == pytest.approx(stats.binom.pmf(np.arange(n + 1), n, p), rel=1e-7, abs=1e-13)


@pytest.mark.parametrize(("share", "effect"), [(0.1, 0.05), (0.3, 0.1), (0.05, 0.2), (1.0, 0.3)])
def test_the_power_of_mcnemars_test_is_the_sum_over_all_outcomes(share, effect):
    num_problems, share_used = 60, max(share, effect)
    won = (1 + effect / share_used) / 2
    counts = np.arange(num_problems + 1)
    exact = 0.0
    for tosses in counts:
        splits = np.arange(tosses + 1)
        alarms = np.array([mid_p(tosses - wins, wins) < 0.05 for wins in splits])
        chance = (stats.binom.pmf(splits, tosses, won) * alarms).sum()
        exact += stats.binom.pmf(tosses, num_problems, share_used) * chance
    assert Discordance(share, num_problems).power(effect, 0.05) == pytest.approx(exact, abs=1e-6)


def test_welchs_test_over_evaluations():
    cases = [(0.5, 0.01, 5, 0.52, 0.03, 3), (0.1, 1e-6, 2, 0.9, 0.2, 40), (0.617, 0.019, 5, 0.619, 0.009, 5)]
    for mean, sd, count, other_mean, other_sd, other_count in cases:
        found = difference_of_scores(Scores("a", mean, sd, count), Scores("b", other_mean, other_sd, other_count), None)
        exact = stats.ttest_ind_from_stats(other_mean, other_sd, other_count, mean, sd, count, equal_var=False)
        assert found.p_value == pytest.approx(exact.pvalue, rel=1e-8)
        freedom = found.design.freedom
        reach = stats.t.ppf(0.975, freedom) * found.design.error
        assert (found.delta.low, found.delta.high) == pytest.approx(
            (other_mean - mean - reach, other_mean - mean + reach)
        )


@pytest.mark.parametrize(("num_base", "num_other"), [(2, 2), (3, 5), (10, 2)])
def test_seeds_alone_are_students_two_sample_test(num_base, num_other):
    """If a run answers all problems alike, problems add no variance."""
    rng = np.random.default_rng(num_base)
    base, other = rng.random(num_base), rng.random(num_other) + 0.3
    found = compare_over_seeds(np.repeat(base[:, None], 7, axis=1), np.repeat(other[:, None], 7, axis=1))
    exact = stats.ttest_ind(other, base)
    assert found.p_value == pytest.approx(exact.pvalue, rel=1e-6)
    assert (found.delta.low, found.delta.high) == pytest.approx(tuple(exact.confidence_interval()), rel=1e-6)


def test_the_bootstrap_over_problems_agrees_with_the_paired_t_test_where_that_holds():
    rng = np.random.default_rng(0)
    base = rng.random(400)
    for shift in (0.0, 0.01, 0.03):
        other = base + rng.normal(shift, 0.2, 400)
        found, exact = compare_over_problems(base, other), stats.ttest_rel(other, base)
        assert found.p_value == pytest.approx(exact.pvalue, rel=0.1, abs=0.003)
        low, high = exact.confidence_interval()
        assert (found.delta.low, found.delta.high) == pytest.approx((low, high), abs=0.03 * (high - low))


def test_resampled_means_are_those_of_scipys_bootstrap():
    values = stats.expon.rvs(size=60, random_state=3).round(1)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, rng=np.random.default_rng(1), method="percentile")
    ours = resampled_means(values, seed=0, num_resamples=20_000)
    assert ours.std() == pytest.approx(theirs.standard_error, rel=0.03)
    interval = theirs.confidence_interval
    assert np.quantile(ours, [0.025, 0.975]) == pytest.approx([interval.low, interval.high], rel=0.01)


@pytest.mark.parametrize("freedom", [5, 6, 9, 19, 99, 999, 10**6])
def test_the_expansion_of_students_t_is_within_what_it_says(freedom):
    assert student_t(0.975, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=0.002)


@pytest.mark.parametrize("num_problems", [6, 10, 100, 10_000])
def test_tails_are_those_of_the_expanded_percentile_interval(num_problems):
    width = np.sqrt(num_problems / (num_problems - 1)) * stats.t.ppf(0.975, num_problems - 1)
    assert percentile_tails(num_problems)[0] == pytest.approx(stats.norm.cdf(-width), rel=0.015)


@pytest.mark.parametrize("num_problems", [1, 2, 10, 1000, 10**6])
def test_an_interval_without_variation_is_clopper_and_pearsons(num_problems):
    for hits in (0, num_problems):
        exact = stats.binomtest(hits, num_problems).proportion_ci(0.95, "exact")
        values = np.full(num_problems, float(hits > 0))
        found = mean_with_interval(values, bounds=SHARES)
        assert (found.low, found.high) == pytest.approx((exact.low, exact.high), rel=1e-6, abs=1e-12)


def test_pass_at_k_is_hypergeometric():
    for n, k in ((1, 1), (8, 1), (8, 8), (64, 7), (200, 100), (2000, 1)):
        right = np.unique(np.linspace(0, n, 9).astype(int))
        exact = 1 - stats.hypergeom.pmf(0, n, right, k)
        assert pass_at_k([n] * len(right), right, k) == pytest.approx(exact, abs=1e-10)


def test_agreement_of_a_group_is_a_share_of_subsets():
    for counts in ((8,), (5, 3), (16, 1, 1), (30, 20, 10, 4)):
        prompt = Counter({float(value): count for value, count in enumerate(counts)})
        for size in (2, 3, 8):
            n = sum(counts)
            exact = sum(special.comb(count, size) for count in counts) / special.comb(n, size)
            assert agreement_within([prompt], size)[0] == pytest.approx(exact, abs=1e-12)
        assert reward_variances({"p": prompt})["p"] == pytest.approx(np.var(list(prompt.elements()), ddof=1))


def likelihood(log_ab, tries, hits):
    a, b = np.exp(log_ab)
    return -stats.betabinom.logpmf(hits, tries, a, b).sum()


@pytest.mark.parametrize("shape", [(0.05, 0.05), (0.3, 0.7), (0.2, 3.0), (1, 1), (8.0, 4.0), (60.0, 40.0), (0.02, 5.0)])
def test_a_fitted_beta_has_the_greatest_beta_binomial_likelihood(shape):
    rng = np.random.default_rng(7)
    tries = rng.integers(4, 17, size=300)
    hits = rng.binomial(tries, rng.beta(*shape, size=300))
    found = fit_beta(tries, hits, np.ones((1, 300)))
    best = optimize.minimize(likelihood, np.log(shape), (tries, hits), method="Nelder-Mead", options={"xatol": 1e-8})
    ours = likelihood(np.log([found.a_R[0], found.b_R[0]]), tries, hits)
    assert ours <= best.fun + 1e-6
    assert np.log([found.a_R[0], found.b_R[0]]) == pytest.approx(best.x, abs=1e-3)


def test_staying_unanimous_is_a_ratio_of_beta_binomial_probabilities():
    for tries, hits in (([8] * 6, [0, 1, 5, 8, 3, 8]), ([4] * 5, [4, 4, 4, 0, 4]), ([16] * 4, [0, 0, 1, 0])):
        fits = fit_beta(tries, hits, np.ones((1, len(hits))))
        a, b = fits.a_R[0], fits.b_R[0]
        for have, want in ((1, 2), (4, 8), (8, 64), (16, 16)):
            exact = np.exp(stats.betabinom.logpmf(want, want, a, b) - stats.betabinom.logpmf(have, have, a, b))
            assert fits.stays_R(have, want)[0] == pytest.approx(exact, rel=1e-7)
