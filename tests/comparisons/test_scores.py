"""Figures alone: the published five evaluations of one training run each, and what may be given."""

import numpy as np
import pytest

from egpo.comparisons.outcome import ALPHA
from egpo.comparisons.scores import (
    BINOMIAL,
    WELCH,
    Scores,
    compare_scores,
    difference_of_scores,
    num_evaluations_for,
    over_cases,
    read_scores,
    scores_of,
)
from egpo.errors import InputError

PUBLISHED = ["GRPO=61.7±1.9x5", "EGPO=61.9±0.9x5"]


def test_the_published_reproduction_is_not_distinguishable_and_ten_evaluations_would_not_see_two_points():
    found = compare_scores(read_scores(PUBLISHED), num_cases=200)
    (contrast,) = found.contrasts
    assert contrast.finding == "not distinguishable"
    assert contrast.verdict == (
        "GRPO and EGPO are not distinguishable: difference +0.2 points [-2.1, +2.5]; "
        "smallest detectable difference: 3.2 points (80 % power)"
    )
    assert "detecting 2.0 points on these cases takes 11 evaluations of each." in found.notes[0]
    assert (
        "on other cases of the same kind as these 200, the 95 % interval of the difference is at most [-8.6, +9.0]"
        in found.notes[1]
    )
    assert found.notes[-1].startswith(
        "Evaluations of one training run do not show the variation between training seeds"
    )


def test_so_many_evaluations_see_it_and_one_fewer_do_not():
    """By drawing evaluations that scatter as published, two points apart."""
    rng = np.random.default_rng(0)
    base, other = read_scores(PUBLISHED)
    count = num_evaluations_for(base, other, 0.02)

    def seen(number):
        pairs = zip(rng.normal(0.6, base.sd, (1_500, number)), rng.normal(0.62, other.sd, (1_500, number)), strict=True)
        sides = (tuple(Scores("x", s.mean(), s.std(ddof=1), number) for s in pair) for pair in pairs)
        return np.mean([difference_of_scores(*pair, None).p_value < ALPHA for pair in sides])

    assert seen(count) == pytest.approx(0.81, abs=0.03)
    assert seen(count - 3) < 0.75


def test_evaluations_of_equal_models_are_told_apart_in_five_of_a_hundred_comparisons_at_most():
    """Welch's test of five and five is a little shy."""
    rng = np.random.default_rng(1)
    right = rng.binomial(200, 0.6, size=(2_000, 2, 5)) / 200
    sides = ([Scores("x", s.mean(), s.std(ddof=1), 5) for s in pair] for pair in right)
    assert 0.03 < np.mean([difference_of_scores(*pair, 200).p_value < ALPHA for pair in sides]) < 0.06


def test_over_cases_the_variance_is_that_of_cases_and_of_responses():
    """Cases of differing difficulty, drawn afresh for each model: by drawing them."""
    rng = np.random.default_rng(2)
    means = rng.binomial(5, rng.beta(1, 1, size=(4_000, 200))).mean(1) / 5
    within = np.sqrt(1 / 6 / 200)  # of an evaluation on the same cases: E[p (1 - p)] = 1/6
    scores = Scores("x", 0.5, within, 5)
    assert over_cases(scores, scores, 200).error == pytest.approx(np.sqrt(2) * means.std(), rel=0.04)


def test_one_evaluation_needs_the_number_of_cases():
    one = read_scores(["GRPO=61.7", "EGPO=61.9±0.9x5"])
    with pytest.raises(InputError, match=r"one evaluation does not show how much evaluations vary; .*--cases"):
        compare_scores(one)
    assert compare_scores(one, num_cases=200).contrasts[0].method == BINOMIAL


def test_every_evaluation_may_be_given_in_words_or_files(tmp_path):
    in_words = read_scores(["A=61.0,62.5,60.1", "B=70"])
    (tmp_path / "scores.yaml").write_text("A: [61.0, 62.5, 60.1]\nB: 70\n")
    (tmp_path / "scores.csv").write_text("condition,score\nA,61.0\nA,62.5\nB,70\nA,60.1\n")
    assert read_scores([str(tmp_path / "scores.yaml")]) == in_words
    assert read_scores([str(tmp_path / "scores.csv")]) == in_words
    assert in_words[0] == scores_of("A", [61.0, 62.5, 60.1])
    assert (in_words[0].mean, in_words[0].sd) == (
        pytest.approx(0.612),
        pytest.approx(np.std([61, 62.5, 60.1], ddof=1) / 100),
    )


@pytest.mark.parametrize("word", ["A=61.7±1.9x5", "A=61.7+-1.9x5", "A=61.7+/-1.9×5", "A = 61.7 ± 1.9 x 5"])
def test_a_spread_may_be_written_in_several_ways(word):
    (scores,) = read_scores([word])
    assert (scores.label, scores.mean, scores.sd) == ("A", pytest.approx(0.617), pytest.approx(0.019))
    assert scores.num_evaluations == 5


def test_evaluations_that_agree_to_the_last_digit_say_nothing():
    found = compare_scores(read_scores(["A=60,60", "B=61,61"])).contrasts[0]
    assert (found.finding, found.low, found.detectable) == ("not distinguishable", None, None)


def test_three_conditions_are_corrected_for():
    found = compare_scores(read_scores([*PUBLISHED, "untrained=58.1±1.0x5"]), num_cases=200)
    assert [contrast.method for contrast in found.contrasts] == [WELCH] * 3
    assert found.contrasts[1].adjusted_p > found.contrasts[1].p_value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["A=61"], "fewer than two conditions to compare; give at least two"),
        (["A=61", "A=62"], "`A` is given twice"),
        (["A", "B=1"], "`A` is neither a file nor NAME=...; write NAME=MEAN±SDxEVALUATIONS"),
        (["A=much", "B=1"], "write NAME=MEAN±SDxEVALUATIONS"),
        (["A=nan", "B=1"], "scores must be in percent, from 0 to 100"),
        (["A=161", "B=1"], "scores must be in percent, from 0 to 100"),
        (["A=61±2x1", "B=1"], "a standard deviation, which needs at least 2 evaluations"),
        (["none.yaml"], "none.yaml: the file of scores cannot be read"),
    ],
)
def test_mistakes_are_told(words, message):
    with pytest.raises(InputError) as told:
        compare_scores(read_scores(words), 100)
    assert message in str(told.value)


@pytest.mark.parametrize("text", ["[1, 2]", "a: [b", "a: [x]", ""])
def test_a_file_that_holds_no_scores_is_named(tmp_path, text):
    path = tmp_path / "scores.yaml"
    path.write_text(text)
    with pytest.raises(InputError):
        read_scores([str(path)])
