"""Countdown: the parts add up, the hacks of earlier graders pay nothing, the ground truth is checked."""

from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.errors import InputError
from egpo.rewards.countdown import MODES, PARTS, REASONS, evaluate, judge_countdown

RIGHT = "<think>3 * 5 is 15</think>\n<answer>3 * 5 + 7</answer>"


def answered(expression: str) -> str:
    return f"<think>hm</think><answer>{expression}</answer>"


def test_a_right_answer_earns_everything() -> None:
    verdict = judge_countdown(RIGHT, [7, 3, 5], 22)
    assert (verdict.reward, verdict.correct, verdict.reason) == (1.0, True, "correct")
    assert verdict.parts == PARTS


@pytest.mark.parametrize(
    ("text", "reward", "reason"),
    [
        (RIGHT, 1.0, "correct"),
        ("3 * 5 + 7 <answer>3 * 5 + 7</answer>", 0.9, "correct"),
        (answered("3 + 5 + 7"), 0.5, "wrong_value"),
        (answered("3 * 5 + 7 = 23"), 0.5, "false_equation"),
        (answered("3 * 7 / (5 - 5)"), 0.2, "wrong_numbers"),
        (answered("22"), 0.2, "wrong_numbers"),
        (answered("3 * 5 + 7 + 7 - 7"), 0.2, "wrong_numbers"),
        (answered("3 * 5 + seven"), 0.2, "illegal_character"),
        (answered("3 * 5 + 7 +"), 0.2, "malformed_expression"),
        (answered(""), 0.2, "empty_expression"),
        ("<think>hm</think> 3 * 5 + 7", 0.1, "no_answer_tag"),
        ("<think>hm</think><answer>3 * 5 + 7", 0.1, "no_answer_tag"),
        ("<think>hm <answer>3 * 5 + 7</answer>", 0.0, "unclosed_thinking"),
        ("", 0.0, "no_answer_tag"),
    ],
)
def test_levels(text: str, reward: float, reason: str) -> None:
    verdict = judge_countdown(text, [3, 5, 7], 22)
    assert (verdict.reward, verdict.reason) == (reward, reason)
    assert verdict.correct == (reason == "correct")
    assert sum(verdict.parts.values()) == pytest.approx(reward)
    assert verdict.parts.keys() == PARTS.keys()
    binary = judge_countdown(text, [3, 5, 7], 22, mode="binary")
    assert (binary.reward, binary.correct, binary.reason) == (float(verdict.correct), verdict.correct, reason)


# Each of these paid 1.0 in an earlier grader.
@pytest.mark.parametrize(
    ("expression", "numbers", "target"),
    [
        pytest.param("2.5*4", [2, 5, 4], 10, id="a decimal point joins two numbers"),
        pytest.param("1e2", [1, 2], 100, id="an exponent joins two numbers"),
        pytest.param("1_2*2", [1, 2, 2], 24, id="an underscore joins two numbers"),
        pytest.param("3 # 1 8", [3, 1, 8], 3, id="a comment holds the numbers left over"),
    ],
)
def test_hacks_that_used_to_pay(expression: str, numbers: list[int], target: int) -> None:
    verdict = judge_countdown(answered(expression), numbers, target)
    assert (verdict.reward, verdict.correct) == (0.2, False)


@pytest.mark.parametrize(
    ("expression", "numbers", "target"),
    [
        ("12", [1, 2], 12),
        ("1 2", [1, 2], 12),
        ("22", [3, 5, 7], 22),
        ("22 + 0*3*5*7", [3, 5, 7], 22),
        ("22 = 22", [3, 5, 7], 22),
        ("3*5+7 = 22 = 22", [3, 5, 7], 22),
        ("22 = 3*5+7", [3, 5, 7], 22),
        ("3*5+7 == 22", [3, 5, 7], 22),
        ("3*5+7, 3*5*7", [3, 5, 7], 22),
        ("3**5//7", [3, 5, 7], 34),
        ("0x16", [0, 16], 22),
        ("３*５+７", [3, 5, 7], 22),
        ("٣*5+7", [3, 5, 7], 22),
        ("[22, 3, 5, 7][0]", [3, 5, 7], 22),
        ("22if 3*5*7else 0", [3, 5, 7], 22),
        ("__import__('os')", [3, 5, 7], 22),
        ("9**9**9**9", [9, 9, 9, 9], 1),
        ("3*5+7\x00", [3, 5, 7], 22),
    ],
)
def test_other_hacks_pay_nothing_for_the_value(expression: str, numbers: list[int], target: int) -> None:
    verdict = judge_countdown(answered(expression), numbers, target)
    assert not verdict.correct
    assert verdict.parts["value"] == 0.0


@pytest.mark.parametrize("expression", ["3×5+7", "3*5+7 = 22", "7 − -3*5", "(3)*5+(7)=22", " \n3*5+7\n"])
def test_spellings_that_are_right(expression: str) -> None:
    assert judge_countdown(answered(expression), [3, 5, 7], 22).reward == 1.0


def test_a_negative_target_may_be_claimed_with_either_minus() -> None:
    assert judge_countdown(answered("3 - 5 = −2"), [3, 5], -2).correct
    assert judge_countdown(answered("3 - 5 = -2"), [3, 5], -2).correct


def test_division_is_exact() -> None:
    assert judge_countdown(answered("8 / (3 - 8 / 3)"), [3, 3, 8, 8], 24).correct
    assert judge_countdown(answered("7 / 2"), [7, 2], 3).reason == "wrong_value"


def test_the_last_answer_counts_and_a_draft_in_the_thought_does_not() -> None:
    wrong, right = "<answer>3+5+7</answer>", "<answer>3*5+7</answer>"
    assert judge_countdown(wrong + right, [3, 5, 7], 22).correct
    assert not judge_countdown(right + wrong, [3, 5, 7], 22).correct
    assert judge_countdown(f"<think>{wrong}</think>{right}", [3, 5, 7], 22).correct
    assert judge_countdown(f"<think>{right}</think>", [3, 5, 7], 22).reason == "no_answer_tag"


def test_thinking_opened_by_the_prompt_counts_as_closed() -> None:
    assert judge_countdown("hm</think><answer>3*5+7</answer>", [3, 5, 7], 22).reward == 1.0


def test_other_thinking_tags() -> None:
    text = "<reason>hm</reason><answer>3*5+7</answer>"
    assert judge_countdown(text, [3, 5, 7], 22).reward == 0.9
    assert judge_countdown(text, [3, 5, 7], 22, tags=("<reason>", "</reason>")).reward == 1.0


def test_a_number_given_twice_is_used_twice() -> None:
    assert judge_countdown(answered("5 + 5"), [5, 5], 10).correct
    assert not judge_countdown(answered("5 + 5"), [5], 10).correct
    assert not judge_countdown(answered("10 * 5 / 5"), [10, 5], 10).correct


def test_exactly_the_solutions_are_correct() -> None:
    numbers, target = [2, 3, 4], 10
    found = 0
    for (a, b, c), (p, q) in product(permutations(numbers), product("+-*/", repeat=2)):
        for text in (f"{a}{p}{b}{q}{c}", f"({a}{p}{b}){q}{c}", f"{a}{p}({b}{q}{c})"):
            right = judge_countdown(answered(text), numbers, target).correct
            assert right == (evaluate(text).value == target)
            found += right
    assert found > 0


@given(st.text(), st.sampled_from(MODES))
def test_any_text_gets_a_documented_verdict(text: str, mode: str) -> None:
    for response in (text, answered(text), f"<answer>{text}"):
        verdict = judge_countdown(response, [1, 2], 3, mode=mode)
        assert verdict.reason in REASONS
        assert 0.0 <= verdict.reward <= 1.0
        assert not verdict.failed


def test_numpy_integers_are_integers() -> None:
    assert judge_countdown(RIGHT, np.array([3, 5, 7]), np.int64(22)).correct


@pytest.mark.parametrize(
    ("numbers", "target"),
    [([], 3), ("3 5 7", 22), ([3, 5.5], 22), ([3, "5"], 22), (None, 22), ([3, 5], None), ([3, 5], "8"), ([3, None], 1)],
)
def test_a_malformed_ground_truth_is_the_users_mistake(numbers: Any, target: Any) -> None:
    with pytest.raises(InputError, match="countdown ground truth"):
        judge_countdown(RIGHT, numbers, target)


def test_an_unknown_mode_is_named() -> None:
    with pytest.raises(InputError, match="did you mean `binary`"):
        judge_countdown(RIGHT, [3], 3, mode="binry")


@pytest.mark.parametrize("claim", ["=", "= ", "=\n"])
def test_an_equals_sign_with_nothing_behind_it_is_a_false_equation(claim: str) -> None:
    assert judge_countdown(f"<answer>3+5{claim}</answer>", [3, 5], 8).reason == "false_equation"


@pytest.mark.parametrize(("numbers", "target"), [([3, 5], True), ([True, 5], 6), ([False], 0)])
def test_a_bool_is_no_number(numbers: list[int], target: int) -> None:
    with pytest.raises(InputError, match="countdown ground truth"):
        judge_countdown("<answer>3+5</answer>", numbers, target)


def test_negative_numbers_are_refused_since_no_expression_can_use_them() -> None:
    with pytest.raises(InputError, match="-3 is negative"):
        judge_countdown("<answer>5 + -3</answer>", [5, -3], 2)
    assert judge_countdown("<answer>3 - 5</answer>", [3, 5], -2).correct
    assert judge_countdown("<answer>0 * 5</answer>", [0, 5], 0).correct
