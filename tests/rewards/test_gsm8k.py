"""GSM8K: every spelling of the right number counts, on the real set too, and no other number does."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.errors import InputError
from egpo.rewards.gsm8k import MODES, REASONS, gold_number, judge_gsm8k

DATA = Path(__file__).resolve().parents[2] / "../shared/data/gsm8k"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "#### 18",
            "####18",
            "#### $18",
            "#### 18.",
            "#### 18.00",
            "**18**",
            r"\boxed{18}",
            "#### **18**",
            "#### 18 dollars",
        ),
        *("9 * 2 = 18\n#### 18\n", r"#### \boxed{18}", "#### 18%", "####\n18", r"so $\boxed{18}$.", "It is **$18**."),
        *(
            "#### 7\n#### 18",
            r"\boxed{7} \boxed{18}",
            "**7** **18**",
            "<think>#### 7</think>#### 18",
            "hm</think>#### 18",
        ),
        *(r"\boxed{7} #### 18", "#### Step 2: add them up\n\\boxed{18}", "#### +18", "#### 018"),
    ],
)
def test_right(text: str) -> None:
    verdict = judge_gsm8k(text, "#### 18")
    assert (verdict.reward, verdict.correct, verdict.reason) == (1.0, True, "correct")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("#### 19", "wrong_number"),
        ("#### 180", "wrong_number"),
        ("#### 1", "wrong_number"),
        ("#### -18", "wrong_number"),
        ("#### 18.5", "wrong_number"),
        ("#### 18\n#### 19", "wrong_number"),
        (r"#### 19 \boxed{18}", "correct"),  # two numbers after the marker: the box decides
        ("#### 19\n" + r"\boxed{18}", "wrong_number"),
        ("#### 18 19", "not_a_number"),
        ("#### 18 or 19", "not_a_number"),
        ("#### 1,8", "not_a_number"),
        ("#### 1.8e1", "not_a_number"),
        ("#### eighteen", "not_a_number"),
        ("#### ١٨", "not_a_number"),
        ("####", "not_a_number"),
        (r"\boxed{}", "not_a_number"),
        ("**bold**", "not_a_number"),
        ("the answer is 18", "no_answer"),
        ("", "no_answer"),
        ("<think>#### 18</think>", "no_answer"),
        ("<think>#### 18", "unclosed_thinking"),
    ],
)
def test_reasons(text: str, reason: str) -> None:
    verdict = judge_gsm8k(text, "18")
    assert verdict.reason == reason
    assert verdict.correct == (reason == "correct")
    assert verdict.reward == float(verdict.correct)


@pytest.mark.parametrize(
    ("text", "reward"), [("#### 18", 1.1), ("#### 19", 0.1), (r"\boxed{19}", 0.1), ("####", 0.05), ("18", 0.0)]
)
def test_shaped_levels(text: str, reward: float) -> None:
    verdict = judge_gsm8k(text, "18", mode="shaped")
    assert verdict.reward == pytest.approx(reward)
    assert verdict.reward == sum(verdict.parts.values())
    assert verdict.correct == (reward == 1.1)
    assert verdict.parts.keys() == {"answer", "number", "marker"}


@pytest.mark.parametrize(
    "gold", ["#### 1,080", "1080", "1,080", "$1,080", 1080, 1080.0, "long text #### 5\n#### 1,080"]
)
def test_ground_truths_with_commas_and_signs(gold: Any) -> None:
    assert judge_gsm8k("#### 1080", gold).correct
    assert judge_gsm8k("#### 1,080", gold).correct
    assert not judge_gsm8k("#### 1081", gold).correct


@pytest.mark.parametrize("gold", ["", "####", "#### x", "no number", None, "1 2", True, "18 #### "])
def test_a_malformed_ground_truth_is_the_users_mistake(gold: Any) -> None:
    with pytest.raises(InputError, match="gsm8k ground truth"):
        judge_gsm8k("#### 18", gold)


def test_an_unknown_mode_is_named() -> None:
    with pytest.raises(InputError, match="did you mean `shaped`"):
        judge_gsm8k("#### 18", "18", mode="shape")


@given(st.text(), st.sampled_from(MODES))
def test_any_text_gets_a_documented_verdict(text: str, mode: str) -> None:
    for response in (text, f"####{text}", f"\\boxed{{{text}", f"**{text}**"):
        verdict = judge_gsm8k(response, "18", mode=mode)
        assert verdict.reason in REASONS
        assert 0.0 <= verdict.reward <= 1.1
        assert not verdict.failed


@given(st.integers(), st.integers())
def test_two_numbers_agree_exactly_when_they_are_equal(stated: int, gold: int) -> None:
    assert judge_gsm8k(f"#### {stated:,}", str(gold)).correct == (stated == gold)
    assert judge_gsm8k(f"#### ${stated}.00", str(stated)).correct


@pytest.mark.skipif(not DATA.is_dir(), reason="the real GSM8K files are not beside the checkout")
@pytest.mark.parametrize(("split", "rows"), [("train", 7473), ("test", 1319)])
def test_every_real_solution_is_right_and_a_perturbed_one_is_not(split: str, rows: int) -> None:
    solutions = [json.loads(line)["answer"] for line in (DATA / f"{split}.jsonl").read_text().splitlines()]
    assert len(solutions) == rows
    for solution in solutions:
        reasoning, _, answer = solution.rpartition("####")
        number = int(answer.replace(",", ""))
        assert gold_number(solution) == str(number)
        for text in (
            solution,
            f"{reasoning}#### {number}",
            f"{reasoning}#### ${number:,}.00",
            f"\\boxed{{{number:,}}}",
        ):
            assert judge_gsm8k(text, solution).reward == judge_gsm8k(text, str(number)).reward == 1.0
        for wrong in (number + 1, number - 1, -number or 1, number * 10 or 10):
            verdict = judge_gsm8k(f"{reasoning}#### {wrong}", solution)
            assert (verdict.reward, verdict.correct, verdict.reason) == (0.0, False, "wrong_number")


@pytest.mark.parametrize(
    "answer",
    [
        *(
            "18²",
            "18½",
            "18 million",
            "18k",
            "18 K",
            "18!",
            "18 - x",
            "18 + x",
            "18*x",
            "18 * x",
            "18/x",
            "18^x",
            "18=x",
        ),
        *("18 thousand", "18 billion", "18 dozen", "18 hundred", r"18\text{ million}", r"18\cdot x", r"18\pi", "18x"),
        # found by responses that were written to escape a verdict
        *(r"18\sin(x)", r"18\ln x", r"18 \lim x", r"18\theta", r"18\lfloor x \rfloor", r"18 \Rightarrow x"),
        *("18 and a half", "18 squared", "18 三", "$18$ million", "18 Million", "18×x", "18 − x", "18M"),
    ],
)
def test_another_number_that_begins_like_the_right_one_is_not_it(answer: str) -> None:
    assert judge_gsm8k(f"#### {answer}", "18").reason == "not_a_number"


@pytest.mark.parametrize(
    "answer",
    [
        *("18 kg", "**18** dollars", "*18* eggs", "18-inch", "$18/hour", "18 miles/hour", r"18^\circ", "18 (eggs)"),
        *("18 times", "18 minutes", "18 m", "18 boxes", "18 Kim", "18 – that is all", r"18\%", "18 eggs!"),
    ],
)
def test_units_and_remarks_are_ignored(answer: str) -> None:
    assert judge_gsm8k(f"#### {answer}", "18").correct


def test_tags_of_the_thinking_may_be_others() -> None:
    assert judge_gsm8k("[#### 7]#### 18", "18", tags=("[", "]")).correct
    assert judge_gsm8k("[#### 18", "18", tags=("[", "]")).reason == "unclosed_thinking"


@pytest.mark.parametrize("padding", [" ", "* ", r"\,", "~", "_", "`$", r"\text{"])
def test_what_follows_the_number_is_read_in_linear_time(padding: str) -> None:
    start = time.process_time()
    judge_gsm8k(f"#### 18{padding * 200_000}q", "18")
    assert time.process_time() - start < 1.0
