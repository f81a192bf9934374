"""Math: what counts as equal, and what never does."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egpo.errors import EgpoError, InputError
from egpo.rewards.math import REASONS, MathPool, judge_math
from egpo.rewards.math.notation import MAX_DEPTH, normal_form
from egpo.rewards.verdict import Verdict
from egpo.tasks.mixed import draw_math_problem

GSM8K = Path(__file__).resolve().parents[2] / "../shared/data/gsm8k"


@pytest.fixture(scope="module")
def pool() -> Iterator[MathPool]:
    with MathPool(size=1) as pool:
        yield pool


@pytest.fixture
def closed_pool() -> MathPool:
    """A pool that raises when it is asked: whoever passes with it never needed a worker."""
    pool = MathPool()
    pool.close()
    return pool


def boxed(answer: str) -> str:
    return f"So the answer is $\\boxed{{{answer}}}$."


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("18", "18"),
        ("18", "18.00"),
        ("18", r"\$18"),
        ("1,080", "1080"),
        ("1080", r"1{,}080"),
        ("1080", r"1\,080"),
        ("1080", "1 080"),
        ("-3", "−3"),
        (r"\frac{1}{2}", r"\dfrac{1}{2}"),
        (r"\left(1, 2\right)", "(1,2)"),
        ("$x + 1$", "x+1"),
        (r"\text{Sunday}", "Sunday"),
        ("Sunday", r"\text{ sunday }"),
        (r"\text{(A)}", "A"),
        (r"\text{A}", "(A)"),
        (r"\boxed{7}", "7"),
        ("2 + 5 is 7 #### 7", "7"),
        (7, "7"),
        (0.5, "0.5"),
    ],
)
def test_equal_by_spelling(gold: Any, answer: str, closed_pool: MathPool) -> None:
    verdict = judge_math(boxed(answer), gold, pool=closed_pool)
    assert verdict == Verdict(1.0, True, "correct")


@pytest.mark.parametrize(
    ("gold", "answer", "reason"),
    [
        pytest.param("5", "15", "wrong_answer", id="15 ends in 5"),
        pytest.param("123456", "12345", "wrong_answer", id="12345 begins 123456"),
        pytest.param("12345", "123456", "wrong_answer", id="123456 holds 12345"),
        pytest.param("20", "5 15", "not_one_answer", id="math-verify adds 5 and 15"),
        pytest.param("12", r"5\quad 7", "not_one_answer", id="math-verify adds 5 and 7"),
        pytest.param("east", "seat", "wrong_answer", id="math-verify takes words for products"),
        pytest.param(r"\text{no}", "on", "wrong_answer", id="short words too"),
        pytest.param("2", "(" * 500 + "2" + ")" * 500, "too_complex", id="deep"),
        pytest.param("2", "{" * (MAX_DEPTH + 1) + "2" + "}" * (MAX_DEPTH + 1), "too_complex", id="one too deep"),
        pytest.param("2", "2+" * 5000 + "2", "too_complex", id="long"),
        pytest.param("2", "", "no_answer", id="empty"),
        pytest.param("2", " $ $ ", "no_answer", id="blank"),
    ],
)
def test_unequal_without_a_worker(gold: str, answer: str, reason: str, closed_pool: MathPool) -> None:
    assert judge_math(boxed(answer), gold, pool=closed_pool) == Verdict(0.0, False, reason)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("1/2", "0.5"),
        ("0.5", r"\frac{2}{4}"),
        ("5/2", "2 1/2"),
        ("5/2", r"2\frac{1}{2}"),
        (r"\sqrt{8}", r"2\sqrt{2}"),
        ("x^2 + 2x + 1", "(x+1)^2"),
        ("1, 2", "2, 1"),
        ("5", "x = 5"),
        ("5", "2 + 3 = 5"),
        ("xy", "yx"),
        ("xyz", r"x \cdot z \cdot y"),
        ("xyz", "x y z"),
        ("18", r"18\text{ cm}"),
        ("50", r"50\%"),
        ("1/3", "0.333333"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix}1\\2\end{bmatrix}"),
    ],
)
def test_equal_by_math_verify(gold: str, answer: str, pool: MathPool) -> None:
    assert judge_math(boxed(answer), gold, pool=pool) == Verdict(1.0, True, "correct")


@pytest.mark.parametrize(
    ("gold", "answer", "reason"),
    [
        ("5", "5, 15", "wrong_answer"),
        ("5", r"5 \text{ or } 15", "wrong_answer"),
        ("5", "7 = 5", "wrong_answer"),
        ("5", "x = 7 = 5", "wrong_answer"),
        ("5", "1 = 2 = 5", "wrong_answer"),
        ("5", "3*5+7=22<x>3*5+7=22", "wrong_answer"),
        ("5", "5x", "wrong_answer"),
        ("(1, 2)", "(2, 1)", "wrong_answer"),
        ("1/3", "0.33", "wrong_answer"),
        ("3", r"\infty", "wrong_answer"),
        ("3", "NaN", "wrong_answer"),
        ("6", "1/0", "wrong_answer"),
        ("3", "٣", "unparsable"),
        ("3", "\x003", "unparsable"),
        ("3", "\ud8003", "unparsable"),
        ("3", "3)", "unparsable"),
        ("3", r"\frac", "unparsable"),
        ("3", "__import__('os').getpid()", "unparsable"),
    ],
)
def test_unequal_by_math_verify(gold: str, answer: str, reason: str, pool: MathPool) -> None:
    assert judge_math(boxed(answer), gold, pool=pool) == Verdict(0.0, False, reason)


def test_a_ground_truth_that_cannot_be_parsed_decides_by_spelling_or_not_at_all(pool: MathPool) -> None:
    gold = r"f(x) = \begin{cases"
    assert judge_math(f"#### {gold}", gold, pool=pool).correct
    verdict = judge_math(boxed("x"), gold, pool=pool)
    assert verdict == Verdict(0.0, False, "gold_unparsable", failed=True)


def test_a_ground_truth_too_deep_to_parse_never_reaches_a_worker(closed_pool: MathPool) -> None:
    gold = "(" * 100 + "x" + ")" * 100
    assert judge_math(f"#### {gold}", gold, pool=closed_pool).correct
    assert judge_math(boxed("x"), gold, pool=closed_pool) == Verdict(0.0, False, "gold_unparsable", failed=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (r"\boxed{1} \boxed{7}", "correct"),
        (r"\boxed{7} \boxed{1}", "wrong_answer"),
        (r"\boxed{7} \boxed{1", "correct"),
        (r"#### 7", "correct"),
        (r"#### 1 \boxed{7}", "correct"),
        ("<answer>7</answer>", "correct"),
        ("<answer> $7$ </answer>", "correct"),
        (r"<answer>so \boxed{7}</answer>", "correct"),
        ("the answer is 7", "no_answer"),
        ("7", "no_answer"),
        ("", "no_answer"),
        (r"<think>\boxed{7}</think>", "no_answer"),
        (r"<think>\boxed{1}</think>\boxed{7}", "correct"),
        (r"<think>\boxed{7}", "unclosed_thinking"),
    ],
)
def test_where_the_answer_stands(text: str, reason: str, closed_pool: MathPool) -> None:
    verdict = judge_math(text, "7", pool=closed_pool)
    assert (verdict.reason, verdict.failed) == (reason, False)


@pytest.mark.parametrize("gold", ["", "  ", r"\boxed{}", "####", "$$", "9" * 5000, None, float("nan"), True, ["1"]])
def test_a_malformed_ground_truth_is_the_users_mistake(gold: Any) -> None:
    with pytest.raises(InputError, match="math ground truth"):
        judge_math(boxed("1"), gold)


def test_a_closed_pool_says_so(closed_pool: MathPool) -> None:
    with pytest.raises(EgpoError, match="closed"):
        judge_math(boxed(r"\sqrt{49}"), "7", pool=closed_pool)


@pytest.mark.parametrize(
    ("latex", "form"),
    [
        (r" $x$. ", "x"),
        (r"\[ x \]", "x"),
        (r"12 345 678", "12345678"),
        (r"1234 567", "1234 567"),
        (r"1.234 567", "1.234 567"),
        (r"\leftarrow", r"\leftarrow"),
        (r"a \; b", "a b"),
        (r"a + b", "a+b"),
        ("3 1/2 + 1", r"3\frac{1}{2}+1"),
    ],
)
def test_normal_forms(latex: str, form: str) -> None:
    assert normal_form(latex) == form
    assert normal_form(form) == form


@pytest.mark.skipif(not GSM8K.is_dir(), reason="the real GSM8K files are not beside the checkout")
def test_every_real_gsm8k_solution_is_settled_by_spelling(closed_pool: MathPool) -> None:
    lines = [line for split in ("train", "test") for line in (GSM8K / f"{split}.jsonl").read_text().splitlines()]
    assert len(lines) == 8792
    for solution in (json.loads(line)["answer"] for line in lines):
        number = int(solution.rpartition("####")[2].replace(",", ""))
        assert judge_math(solution, str(number), pool=closed_pool).correct
        assert judge_math(boxed(f"{number:,}"), solution, pool=closed_pool).correct
        assert judge_math(boxed(str(number + 1)), solution, pool=closed_pool).reason == "wrong_answer"


def test_every_reason_has_a_meaning() -> None:
    assert all(REASONS.values())
    assert {"checker_timeout", "checker_died"} <= REASONS.keys()


@pytest.mark.parametrize(
    ("answer", "gold", "correct"),
    [
        (r"\frac{1}{2}", "1/2", True),
        (r"\frac{2}{4}", r"\frac{1}{2}", True),
        (r"-\frac{1}{2}", r"\frac{-1}{2}", True),
        (r"\dfrac{6}{3}", "2", True),
        (r"\frac{1}{2}", r"\frac{1}{3}", False),
        ("3/4", "4/3", False),
        (r"-\frac{1}{2}", r"\frac{1}{2}", False),
    ],
)
def test_quotients_of_integers_need_no_worker(answer, gold, correct):
    class NoPool:
        def compare(self, *_):
            raise AssertionError("a worker was asked")

    verdict = judge_math(rf"\boxed{{{answer}}}", gold, pool=NoPool())
    assert (verdict.correct, verdict.reason) == (correct, "correct" if correct else "wrong_answer")


def test_a_quotient_by_zero_is_not_settled_by_arithmetic():
    assert not judge_math(r"\boxed{\frac{1}{0}}", "1").correct


@pytest.mark.parametrize(
    "answer",
    [
        *(
            "9^{9^{9^{9}}}",
            "2^{10^{10}}",
            "9^9^9^9",
            "9^{9}^{9}^{9}",
            "2^{(10)^{10}}",
            r"2^{10^{\frac{20}{2}}}",
            "2^{10^{x-x+10}}",
            "2^{12345678901234567890123456789^{19}}",
            "2^{3x+99999999}",
        ),
        *("((9^{99})^{99})^{99}", "9" * 900 + "^{9999}", "9999999!", "10^{10}!", r"(999\cdot 999)!", "5!!!!!!"),
        *(r"\binom{1000000}{500000}", r"\binom{10^6}{10^5}", r"\Gamma(10^7)", r"\sum_{i=1}^{1000000}i^i"),
        *(r"\prod_{i=1}^{1000000}i", r"\int_0^1 e^{x^2}\sin(x^3)dx", r"\lim_{x\to 0}x^x", "(x+1)^{5000}"),
        *(
            "(x+y+z)^{100}",
            r"\frac{x^{5000}-1}{x-1}",
            r"(1+\sqrt{2})^{5000}",
            "()^{()^()}",
            "(a+b+c+d)(e+f+g+h)(i+j+k+l)(m+n+o+p)(q+r+s+t)(u+v+w+x)",
        ),
    ],
)
def test_a_response_cannot_choose_that_the_checker_fails(answer: str, closed_pool: MathPool) -> None:
    """Each of these kept math-verify busy for seconds or for ever, and was then a failure of the checker."""
    assert judge_math(boxed(answer), "5", pool=closed_pool) == Verdict(0.0, False, "too_complex")
    assert judge_math(boxed(answer), answer, pool=closed_pool).correct


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("2^{2^{3}}", "256"),
        (r"\frac{100!}{98!}", "9900"),
        (r"\binom{10}{3}", "120"),
        (r"\left(\frac{1}{2}\right)^{10}", r"\frac{1}{1024}"),
        ("e^{(x+1)^2}", "e^{x^2+2x+1}"),
        ("2^{2x+1}", r"2 \cdot 4^x"),
        ("2^{2^{n+1}}", r"2^{2 \cdot 2^n}"),
        ("x^{2015}+x^{2014}", "x^{2014}(x+1)"),
        ("(n+1)!", r"(n+1) \cdot n!"),
        (r"\left(\frac{1}{2}\right)^{10}\text{ meters}", r"\frac{1}{1024}"),
        ("a_{1}^{2}+b_{1}^{2}+c_{1}^{2}+d_{1}^{2}", "b_{1}^{2}+a_{1}^{2}+d_{1}^{2}+c_{1}^{2}"),
    ],
)
def test_ordinary_powers_and_factorials_are_still_compared(answer: str, gold: str, pool: MathPool) -> None:
    assert judge_math(boxed(answer), gold, pool=pool).correct


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        *(("no", "on"), ("ON", "no"), ("AC", "CA"), ("x", "X"), ("2x", "2X"), (r"2\pi r", r"2\pi R")),
        *((r"12\text{ am}", r"12\text{ pm}"), ("5 cm", "5 m"), (r"5\text{ cm}", "5 m"), (r"3\text{ hours}", "3 min")),
        *(("101_2", "101"), ("101", "101_2"), ("101_2", "101_3"), (r"\{1,2\}", "(1,2)"), ("[1,2]", r"\{1,2\}")),
    ],
)
def test_what_differs_in_notation_is_not_equal(answer: str, gold: str, closed_pool: MathPool) -> None:
    """math-verify takes each of these for equal."""
    assert judge_math(boxed(answer), gold, pool=closed_pool) == Verdict(0.0, False, "wrong_answer")


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        *((r"5\text{ centimeters}", r"5\text{ cm}"), (r"5\text{ in}", r"5\text{ inches}"), ("5", r"5\text{ m}")),
        *((r"12:30\text{ p.m.}", r"12:30\text{ pm}"), (r"5\text{ cm}^2", r"5\text{ cm}")),
        *(("101_{2}", "101_2"), ("x_1 = 5", "5"), (r"\{1,2\}", "1,2"), ("(1,2),(3,4)", r"\{(1,2),(3,4)\}")),
        *(("yx", "xy"), ("A", r"\text{A}"), (r"\frac{X}{x}", r"\frac{X}{x}"), (r"A \cdot C", "AC")),
    ],
)
def test_what_differs_in_spelling_alone_is_equal(answer: str, gold: str, pool: MathPool) -> None:
    assert judge_math(boxed(answer), gold, pool=pool).correct


def test_an_expression_copied_from_a_question_is_equal_to_its_value(pool: MathPool) -> None:
    """The limit that the page states: equality is asked for, and not a form."""
    assert judge_math(boxed("(x+1)(x+2)"), "x^2 + 3x + 2", pool=pool).correct
    assert judge_math(boxed(r"\frac{1}{3}+\frac{1}{4}"), r"\frac{7}{12}", pool=pool).correct


def test_no_generated_question_can_be_copied(pool: MathPool) -> None:
    rng = random.Random(0)
    for problem in (draw_math_problem(rng) for _ in range(400)):
        assert judge_math(boxed(problem.answer), problem.answer, pool=pool).correct
        for copied in [*re.findall(r"\$([^$]+)\$", problem.question), *re.findall(r"-?[0-9]+", problem.question)]:
            assert not judge_math(boxed(copied), problem.answer, pool=pool).correct, problem


def test_tags_of_the_thinking_may_be_others(closed_pool: MathPool) -> None:
    text = r"[\boxed{5}]\boxed{7}"
    assert judge_math(text, "7", tags=("[", "]"), pool=closed_pool).correct
    assert judge_math(r"[\boxed{7}]", "7", tags=("[", "]"), pool=closed_pool).reason == "no_answer"
