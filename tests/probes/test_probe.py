"""A probe of hand-made responses: figures, findings, the recommended group size."""

import math

import pytest

from egpo.errors import EgpoError, InputError
from egpo.evals.intervals import Estimate
from egpo.evals.responses import SampleRecord
from egpo.probes.findings import FILTER, HARDER, SFT_FIRST, find_faults, recommend
from egpo.probes.forecast import Forecast, count_rewards, reward_variances
from egpo.probes.probe import probe
from tests.probes.scripted import Scripted, paper_of, probed


def finding(outcome, figure):
    return next(one for one in outcome.findings if one.figure == figure)


def test_figures_are_those_of_the_responses():
    outcome = probed([0, 2, 4, 3], n=4, num_tokens=5, finished=True, entropy={"response": 0.5})
    assert list(outcome.pass_rates.values()) == [0, 0.5, 1, 0.75]
    assert list(outcome.pass_rates) == ["train 0", "train 1", "train 2", "train 3"]
    assert outcome.evaluation.figures.accuracy.value == pytest.approx(9 / 16)
    assert outcome.reward_variance.value == pytest.approx((1 / 3 + 1 / 4) / 4)
    assert outcome.forecasts[0].informative.value == pytest.approx((4 / 6 + 3 / 6) / 4)
    assert finding(outcome, "entropy").status == "good"


def test_the_training_split_is_probed_by_a_random_part_of_it():
    whole, part, other = paper_of(50, 2), paper_of(50, 2, num_problems=20), paper_of(50, 2, num_problems=20, seed=1)
    assert {problem.key.split()[0] for problem in whole.problems} == {"train"}
    assert len(part.problems) == len(other.problems) == 20
    assert part.problems == paper_of(50, 2, num_problems=20).problems != other.problems
    places = [whole.problems.index(problem) for problem in part.problems]
    assert places == sorted(places) != list(range(20))


def test_failures_are_no_wrong_answers():
    said = Scripted(lambda problem, sample: None if sample == 0 else problem.ground_truth)
    outcome = probe(said, paper_of(4, 4))
    assert set(outcome.pass_rates.values()) == {1.0}
    assert finding(outcome, "failures").value == 0.25
    only_first = Scripted(lambda problem, sample: problem.ground_truth if problem.key == "train 0" else None)
    assert list(probe(only_first, paper_of(4, 4)).pass_rates) == ["train 0"]
    with pytest.raises(EgpoError, match="failed to give any of 16 responses"):
        probe(Scripted(lambda problem, sample: None), paper_of(4, 4))


def test_one_response_a_prompt_is_refused():
    with pytest.raises(InputError, match="at least two responses"):
        paper_of(4, 1)


def test_a_split_without_problems():
    with pytest.raises(InputError, match="split `train`: the split has no problems"):
        paper_of(0, 2)


def test_variance_does_not_depend_on_the_number_of_responses():
    def samples(*scores):
        return [SampleRecord("a", i, "", "", "", score, False, "") for i, score in enumerate(scores)]

    assert reward_variances(count_rewards(samples(0, 1)))["a"] == pytest.approx(0.5)
    assert reward_variances(count_rewards(samples(0, 1, 0, 1)))["a"] == pytest.approx(1 / 3)
    assert math.isnan(reward_variances(count_rewards(samples(1)))["a"])


def test_rewards_that_agree_in_training_agree_here_and_what_is_no_number_is_left_out():
    def sample(score, failed=False):
        return SampleRecord("a", 0, "", "", "", score, False, "", failed)

    counts = count_rewards([sample(0.3), sample(0.1 + 0.2), sample(math.nan), sample(1.0, failed=True)])["a"]
    assert list(counts.values()) == [2]


@pytest.mark.parametrize(
    ("right", "status", "advice"),
    [
        (0, "bad", SFT_FIRST),
        (3, "remark", "larger groups"),
        (20, "good", ""),
        (36, "remark", "harder"),
        (39, "bad", HARDER),
    ],
)
def test_accuracy_against_its_thresholds(right, status, advice):
    found = finding(probed([right] * 40, n=40), "accuracy")
    assert (found.status, advice in found.advice) == (status, True)


def test_an_interval_that_crosses_a_threshold_says_so():
    assert "the 95 % interval contains a threshold" in finding(probed([0, 0, 0, 0, 0, 0, 0, 6], n=8), "accuracy").advice
    assert "interval" not in finding(probed([4] * 8, n=8), "accuracy").advice


@pytest.mark.parametrize(
    ("times", "advice"), [([0] * 20, SFT_FIRST), ([8] * 20, HARDER), ([0] * 10 + [8] * 10, FILTER)]
)
def test_too_little_variance_is_in_the_way_and_the_advice_depends_on_why(times, advice):
    found = finding(probed(times, n=8), "reward variance")
    assert found.status == "bad"
    assert found.advice.startswith(advice)


@pytest.mark.parametrize(
    ("entropy", "advice"), [(0.05, "raise the temperature"), (0.5, ""), (2.0, "lower the temperature")]
)
def test_entropy_outside_its_range_is_a_remark_only(entropy, advice):
    found = finding(probed([2, 2], n=4, entropy={"response": entropy}), "entropy")
    assert found.status == ("remark" if advice else "good")
    assert advice in found.advice


def test_responses_that_are_cut_off_are_remarked():
    assert finding(probed([2, 2], n=4, finished=False), "cut off").status == "remark"


def test_nothing_readable_is_in_the_way():
    said = Scripted(lambda problem, sample: "what?")
    outcome = probe(said, paper_of(3, 2, task="countdown", train=3, test=1, max_number=20))
    assert outcome.evaluation.figures.readable_frac == 0
    assert outcome.findings[0].figure == "readable"
    assert outcome.recommendation.group_size is None


def test_what_is_not_known_is_not_found():
    assert {one.figure for one in find_faults(probed([1, 2], n=2).evaluation.figures, None)} == {"accuracy"}


@pytest.mark.parametrize(
    ("shares", "size", "why"),
    [
        ((0.3, 0.6, 0.75, 0.9), 8, "the smallest size with 70% informative groups: 75%"),
        ((0.2, 0.36, 0.47, 0.5), 8, "47% informative groups; no size reaches 70% (50% at size 16)"),
        ((0.01, 0.02, 0.04, 0.08), 16, "even there only 8%"),
        ((0.0, 0.0, 0.0, 0.0), None, "no learning signal"),
    ],
)
def test_the_recommended_group_size(shares, size, why):
    found = recommend(
        [Forecast(2 ** (i + 1), Estimate(share, 0, 1, 9), extrapolated=False) for i, share in enumerate(shares)]
    )
    assert found.group_size == size
    assert why in found.why
