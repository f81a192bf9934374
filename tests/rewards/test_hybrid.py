"""`ability` decides: the row's own column first, then `extra_info`."""

import numpy as np
import pytest

from egpo.errors import InputError
from egpo.rewards import REWARDS, Sample, score, score_many
from egpo.rewards.scoring import ABILITIES, KINDS
from egpo.verl.reward import compute_score

BOXED = r"\boxed{5}"
TESTS = '{"assert": "assert f(1) == 2"}'


@pytest.mark.parametrize(
    "ability", ["math", "MATH", b"math", ["math"], np.array("math"), np.array(["math"]), np.str_("math")]
)
def test_ability_in_any_wrapping(ability):
    assert score("mixed", BOXED, "5", {"ability": ability}).correct


def test_code_goes_to_the_code_reward():
    assert score("mixed", "no program", TESTS, {"ability": "code"}).reason == "no_code"


def test_the_rows_own_column_goes_first():
    row = {
        "data_source": "mixed",
        "ability": "math",
        "ground_truth": "5",
        "response": BOXED,
        "extra_info": {"ability": "code"},
    }
    assert score_many([row], workers=0)[0].correct
    assert score_many([Sample("mixed", BOXED, "5", "math", {"ability": "code"})], workers=0)[0].correct
    only_extra = {**row, "ability": "", "extra_info": {"ability": "math"}}
    assert score_many([only_extra, {**only_extra, "ability": None}], workers=0)[1].correct


def test_driver_and_worker_agree():
    rows = [
        {"data_source": "mixed", "ability": "math", "ground_truth": "5", "response": BOXED},
        {"data_source": "mixed", "ground_truth": "5", "response": r"\boxed{6}", "extra_info": {"ability": "math"}},
        {"data_source": "mixed", "ability": "code", "ground_truth": TESTS, "response": BOXED},
    ]
    assert score_many(rows, workers=1) == score_many(rows, workers=0)
    assert compute_score("mixed", BOXED, "5", {"ability": np.array("math")})["acc"] == 1.0


@pytest.mark.parametrize(
    "extra", [{}, {"ability": ""}, {"ability": None}, {"ability": float("nan")}, {"ability": np.array(None)}]
)
def test_no_ability_is_an_error(extra):
    with pytest.raises(InputError, match="has no `ability`"):
        score("mixed", BOXED, "5", extra)


def test_an_unknown_ability_is_told_the_nearest():
    with pytest.raises(InputError, match="did you mean `math`"):
        score("mixed", BOXED, "5", {"ability": "maths"})


def test_the_reasons_are_those_of_both():
    assert set(REWARDS["hybrid"].reasons) == set().union(*(KINDS[ability].reasons for ability in ABILITIES))


def test_the_mode_of_a_mixed_set_is_that_of_its_programs():
    assert REWARDS["hybrid"].modes == ("binary", "fraction")
    for mode in ("binary", "fraction", np.array("fraction"), None):
        assert score("mixed", BOXED, "5", {"ability": "math", "mode": mode}).correct
    for ability, truth in (("math", "5"), ("code", TESTS)):
        with pytest.raises(InputError, match="unknown mode `shaped`"):
            score("mixed", BOXED, truth, {"ability": ability, "mode": "shaped"})
    with pytest.raises(InputError, match="unknown mode `fraction`"):
        score("math", BOXED, "5", {"mode": "fraction"})
