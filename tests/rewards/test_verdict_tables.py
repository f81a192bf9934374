r"""Math and GSM8K: answers with known verdicts around a second number, a scale, a sign, zero, and a unit.

Each table has variants of a right answer that stay right, and variants that are wrong although they begin like it.
The variants are applied to several ground truths, so that no rule holds for one number alone.
"""

from collections.abc import Iterator
from fractions import Fraction

import pytest

from egpo.rewards.gsm8k import judge_gsm8k
from egpo.rewards.math import MathPool, judge_math
from egpo.rewards.math.worker import agree


@pytest.fixture(scope="module")
def pool() -> Iterator[MathPool]:
    with MathPool(size=1) as pool:
        yield pool


GSM8K_RIGHT = (
    *("{}", "{}.", "{} dollars", "{} apples", "{} eggs per day", "{} percent", "{}%", "${}", "**{}** eggs", "{}-inch"),
    *("{} quarters", "{} half-dollars", "{} half hours", "{} ten-dollar bills", "{} twenty-dollar bills", "{} pairs"),
    *(
        "{} one-way trips",
        "{} dollars for each one",
        "{} eggs per dozen",
        "{} double rooms",
        "{} times as many",
        "{} times a day",
    ),
    *(
        "{} seconds",
        "{} months",
        "{} grandchildren",
        "{} tents",
        "{} milk bottles",
        "{} lakes",
        "{} orders",
        "{} notes",
    ),
    *("{} dogs or cats", "{} tennis balls", "{} people (no one else)", "{} billionaires", "{} negative numbers"),
    *("{} years old", "{} more", r"{}\text{{ dollars}}", r"{}\%", "{} miles/hour", "{} (eggs)", "{} – that is all"),
)
GSM8K_WRONG = (
    # a scale behind the number
    *(
        "{} lakh",
        "{} lakhs",
        "{} crore",
        "{} thousand",
        "{} million",
        "{} million dollars",
        "{} quadrillion",
        "{} grand",
    ),
    *("{} mil", "{} dozen", "{}k", "{}-thousand", r"{}\text{{ lakh}}", "{} Millionen", "{}만", "{} 억", "{}万"),
    # a part of the number
    *(
        "{} thirds",
        "{} halves",
        "{} half",
        "{} tenths",
        "{} twelfths",
        "{} sixteenths",
        "{} thousandths",
        "{} and a half",
        "{} point five",
    ),
    # a second number, in words
    *("{} and seventeen", "{} or nineteen", "{}, nineteen", "{} dollars and seventeen", "{} thirty five", "{} or one"),
    *("{} twenty-one", "{} to twenty", "{} dollars, five cents", "{} and one", "{} zero", r"{}\text{{ and six}}"),
    # a second number, in digits
    *("{} or 19", "{} 19", "{}/19", "{}, 19", "{} (or 19)", "{}e2", "{}²", "{} ٣"),
    # a hedge without a number
    *("{} or more", "{} or x", "{}, or x", "{} (or none)", "{} eggs or none", "{} dollars or a million", "{} not"),
    # an operation on the number
    *(
        "{} twice",
        "{} dollars twice",
        "{} doubled",
        "{} squared",
        "{} times x",
        "{} divided by x",
        "{} times two",
        "{}!",
    ),
    *("{}→x", "{} ≈ x", "{} ∨ x", "{} | x", "{} mod x", "{} choose x", "{} pi", "{}‰", "{} dollars minus x", "{} vs x"),
    *("{} negative", "{} minus x", "{}x", "{} + x", "{}^2"),
)


@pytest.mark.parametrize("number", ["18", "0", "7", "1,080", "-12", "2.5"])
@pytest.mark.parametrize("variant", GSM8K_RIGHT)
def test_gsm8k_units_leave_the_number_right(variant: str, number: str) -> None:
    assert judge_gsm8k(f"#### {variant.format(number)}", number).correct
    assert judge_gsm8k(rf"\boxed{{{variant.format(number)}}}", number).correct


@pytest.mark.parametrize("number", ["18", "0", "7", "1,080", "-12", "2.5"])
@pytest.mark.parametrize("variant", GSM8K_WRONG)
def test_gsm8k_what_changes_the_number_or_adds_another_is_not_ignored(variant: str, number: str) -> None:
    assert not judge_gsm8k(f"#### {variant.format(number)}", number).correct
    assert not judge_gsm8k(rf"\boxed{{{variant.format(number)}}}", number).correct


@pytest.mark.parametrize("number", ["18", "7", "1080", "-12", "2.5", "0.004"])
def test_gsm8k_another_scale_or_sign_is_another_number(number: str) -> None:
    value = Fraction(number)
    for power in (-3, -2, -1, 1, 2, 3, 6):
        assert not judge_gsm8k(f"#### {float(value * Fraction(10) ** power):.9f}", number).correct
    assert not judge_gsm8k(f"#### {float(-value)}", number).correct
    assert not judge_gsm8k("#### 0", number).correct
    assert not judge_gsm8k(f"#### {number}", "0").correct


MATH_RIGHT = (
    *("{}", r"\text{{{}}}", r"\text{{{} cm}}", r"{}\text{{ cm}}", r"{}\text{{ cm}}^2", r"{}\text{{ cm^2}}", "x = {}"),
    *(r"{}\text{{ m/s^2}}", r"{}\text{{ square feet}}", r"{}\text{{ dollars}}", r"{}\,\text{{units}}", r"{}^\circ"),
    *("{}e0", "{}E0", r"{}\times 10^{{0}}", r"1 \cdot {}", r"{} + 0"),
)
MATH_WRONG = (
    # a second number in text
    *(r"{}\text{{ or 6}}", r"{}\text{{ (or 6)}}", r"{}\text{{ or {{6}}}}", r"{}\text{{ and six}}", r"{}\textbf{{ 6}}"),
    *(r"{}\mathrm{{6}}", r"{}\mbox{{ or 6}}", r"{}\textit{{ or 6}}", r"{}\text{{ six}}", r"\text{{{} or 6}}"),
    *(r"{}\text{{ or }}6", r"{}\text{{ minus one}}", r"{}\text{{ point five}}", r"{}\text{{ ٣}}"),
    # words that change the number
    *(r"{}\text{{ million}}", r"{}\text{{ thousand dollars}}", "{} million", r"{}\text{{ dozen}}", r"{}\text{{ lakh}}"),
    *(r"{}\text{{ squared}}", r"{}\text{{ halves}}", r"{}\text{{ twice}}", r"{}\text{{ times two}}"),
    # hedges without a number
    *(r"{}\text{{ or more}}", r"{}\text{{ or none}}", r"{}\text{{ or so}}"),
    # numbers side by side
    *("{} 6", "{}, 6", r"{}\ldots 6", r"{}\phantom{{6}}", "{}; 6"),
    # another scale or sign
    *("{}e1", "{}e-1", "{}e3", r"{}\cdot 10^{{-1}}", r"{}\times 10^{{9}}", "-({})", r"{}\cdot i"),
)


@pytest.mark.parametrize("number", ["5", "12.5", "1080"])
@pytest.mark.parametrize("variant", MATH_RIGHT)
def test_math_units_and_notation_leave_the_number_right(variant: str, number: str, pool: MathPool) -> None:
    assert judge_math(rf"\boxed{{{variant.format(number)}}}", number, pool=pool).correct


@pytest.mark.parametrize("number", ["5", "12.5", "1080"])
@pytest.mark.parametrize("variant", MATH_WRONG)
def test_math_a_second_number_a_scale_or_a_sign_is_not_ignored(variant: str, number: str, pool: MathPool) -> None:
    verdict = judge_math(rf"\boxed{{{variant.format(number)}}}", number, pool=pool)
    assert (verdict.correct, verdict.failed) == (False, False)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # repeating decimals
        *((r"0.\overline{3}", "1/3"), (r"0.1\overline{6}", r"\frac{1}{6}"), (r"0.\bar{3}", r"\frac13")),
        *((r"0.\overline{142857}", "1/7"), (r"0.\overline{9}", "1"), (r"-0.\overline{3}", r"-\frac{1}{3}")),
        *((r"0.333\ldots", "1/3"), ("0.333...", "1/3"), ("0.(3)", "1/3"), (r"0.\dot{3}", "1/3")),
        *(
            (r"0.\overline{3}", "0.333333"),
            (r"x = 0.\overline{3}", "1/3"),
            (r"(0.\overline{3}, 1)", r"(\frac{1}{3}, 1)"),
        ),
        (r"0.\overline{6}^2", r"\frac{4}{9}"),
        # scientific notation
        *(("1e3", "1000"), ("1.5e3", "1500"), ("1E3", "1,000"), ("1e-3", "0.001"), ("2e-3", "0.002")),
        *(("1.6e-19", r"1.6 \cdot 10^{-19}"), (r"1.60 \times 10^{-19}", "1.6e-19"), ("6.02e23", r"602 \cdot 10^{21}")),
        *(("1e-400", "1.0e-400"), ("10e-401", "1e-400"), ("(1e3, 2)", "(1000, 2)"), ("1e3 + x", "x + 1000")),
        # Euler's number twice, less three
        *(("2e-3", "2e - 3"), ("2e-3", "-3 + 2e")),
        # the imaginary unit
        *((r"e^{i\pi}", "-1"), (r"e^{\pi i}", "-1"), ("i^2", "-1"), ("3+4i", "4i+3"), (r"\frac{1}{i}", "-i")),
        (r"\begin{pmatrix}i\\2\end{pmatrix}", r"\begin{pmatrix}\sqrt{-1}\\2\end{pmatrix}"),
        (r"\begin{pmatrix}0.333333\\1\end{pmatrix}", r"\begin{pmatrix}\frac13\\1\end{pmatrix}"),
        # zero
        *(("0.0", "0"), ("-0", "0"), (r"\sin(\pi)", "0"), ("0.1+0.2-0.3", "0"), ("1-1", "0.0"), ("0e5", "0")),
        # decimals to six places, small ones to six digits
        *(("0.333333", "1/3"), ("0.166667", "1/6"), ("3.141593", r"\pi"), ("0.000333333", "1/3000")),
        *((r"\{0.333333, 1\}", r"\{\frac13, 1\}"), ("0.1+0.2", "0.3"), ("0.1x + 0.2x", "0.3x")),
        *((r"0.5\pi", r"\frac{\pi}{2}"), (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}")),
        # percentages
        *((r"50\%", "50"), (r"50\%", "0.5"), (r"12.5\%", "12.5"), (r"12.5\%", "0.125"), (r"50\%", r"\frac{1}{2}")),
        # a scale in words, and a choice
        *((r"5\text{ million}", "5000000"), (r"1.5\text{ million dollars}", "1500000"), ("5 million", "5{,}000{,}000")),
        *((r"5\text{ or 6}", "5, 6"), (r"5\text{ or 6}", r"5\text{ or }6")),
        # fractions without braces, style commands, membership, bare units
        *(
            (r"\frac12", "0.5"),
            (r"33\frac13\%", r"33\frac{1}{3}\%"),
            (r"\frac1{72}", "1/72"),
            (r"\displaystyle 5", "5"),
        ),
        *(
            (r"\frac{1}{2}\frac{1}{3}", r"\frac{1}{6}"),
            (r"x \in [1, 2]", "[1,2]"),
            ("5 dollars", "5"),
            (r"\$5", "5 dollars"),
        ),
        *(
            (r"5\text{ km/h}", r"5\text{ km/hour}"),
            (r"5^\circ", "5 degrees"),
            (r"5\text{ cm}^2", r"5\text{ square cm}"),
        ),
    ],
)
def test_math_two_spellings_of_one_answer_are_equal_both_ways(first: str, second: str, pool: MathPool) -> None:
    assert judge_math(rf"\boxed{{{first}}}", second, pool=pool).correct
    assert judge_math(rf"\boxed{{{second}}}", first, pool=pool).correct


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # zero equals only zero
        *(("0.0", "1.6e-19"), ("0.0", "1/3000000"), ("0.0", r"1.6\cdot 10^{-19}"), ("0", "1e-400"), ("0", "0.0000001")),
        *((r"\pi\cdot 10^{-30}", "0"), ("(0.0, 1)", "(10^{-9}, 1)"), (r"\{0.0\}", r"\{10^{-9}\}")),
        *(("[0.0, 1]", "[10^{-9}, 1]"), (r"10^{-20}x", r"2\cdot 10^{-20}x"), (r"10^{-20}x", "0")),
        (r"\begin{pmatrix}0.0\\1\end{pmatrix}", r"\begin{pmatrix}10^{-9}\\1\end{pmatrix}"),
        # small numbers
        *(("1.6e-19", "1.7e-19"), ("1.602e-19", "1.603e-19"), ("1.6e-19", "-1.6e-19"), ("1.6e-19", "1.6e-18")),
        *(("0.000003", "1/300000"), ("1e-400", "1e-401"), (r"\sqrt{2}\cdot 10^{-20}", r"\sqrt{3}\cdot 10^{-20}")),
        (r"1.6\cdot 10^{-19}", r"1.6\cdot 10^{-18}"),
        # large numbers
        *((r"\sqrt{10^{60}+1}", "10^{30}"), ("1e3", "1001"), ("1e3", "100"), ("1e3", "1"), ("1e400", "1e401")),
        # too few digits
        *(("0.33", "1/3"), ("3.14", r"\pi"), (r"0.1\overline{6}", "0.16"), (r"0.\overline{3}", "0.3")),
        # percentages of another size
        *((r"5\%", "500"), (r"50\%", "5"), (r"0.5\%", "5"), (r"12.5\%", "1.25"), (r"50\%", "5000")),
        # signs, and the imaginary unit
        *(("-5", "5"), (r"e^{i\pi}", "1"), ("i^2", "1"), ("3+4i", "3-4i"), (r"-0.\overline{3}", "1/3")),
        # a scale in words
        *((r"5\text{ million}", "5"), (r"5\text{ million}", r"5\text{ billion}"), ("5 million", "50000000")),
        (r"5\text{ or 6}", "11"),
        # units
        *((r"5\text{ cm}^2", r"5\text{ cm}^3"), (r"5\text{ km/h}", r"5\text{ m/s}"), (r"\$5", r"5\text{ cents}")),
        *((r"5^\circ", r"5\text{ radians}"), (r"5\text{ kg}", r"5\text{ g}"), ("5 hours", r"5\text{ minutes}")),
    ],
)
def test_math_two_answers_are_unequal_both_ways(first: str, second: str, pool: MathPool) -> None:
    for stated, gold in ((first, second), (second, first)):
        verdict = judge_math(rf"\boxed{{{stated}}}", gold, pool=pool)
        assert (verdict.correct, verdict.failed) == (False, False)


@pytest.mark.parametrize(
    "stated",
    [
        *("5 6", r"5\quad 6", r"5\displaystyle 6", r"5\ldots 6", r"5\phantom{6}", r"\frac{5}{1}\frac{6}{1}"),
        *(r"5\text{ }6", r"5\text{ or 6}", r"5\bf 6", r"\mathrm{5}\mathrm{6}"),
    ],
)
def test_math_numbers_side_by_side_are_no_sum(stated: str, pool: MathPool) -> None:
    verdict = judge_math(rf"\boxed{{{stated}}}", "11", pool=pool)
    assert (verdict.correct, verdict.failed) == (False, False)


def test_numbers_of_every_size_agree_with_themselves_and_not_with_a_neighbour() -> None:
    for power in range(-400, 401, 8):
        value = Fraction(10) ** power * Fraction(16, 10)
        assert agree(value, value)
        assert agree(-value, -value)
        for factor in (Fraction(-1), Fraction(10), Fraction(1, 10), Fraction(1001, 1000), Fraction(999, 1000)):
            other = value * factor
            # Beside 0.001 and above, six decimal places are what counts.
            assert agree(value, other) == (abs(value) >= Fraction(1, 1000) and round(value, 6) == round(other, 6))
        assert not agree(value, Fraction(0))
        assert not agree(Fraction(0), value)


@pytest.mark.parametrize(
    ("stated", "gold"),
    [
        # what follows `\approx` was not read at all
        *((r"5 \approx 7777777", "5"), (r"\pi \approx 3.24", r"\pi"), (r"39\% \approx 7777777", r"39\%")),
        *((r"x^2 \approx 7", "x^2"), (r"5 \approx x", "5"), (r"5 \approx 5.01 \approx 9", "5")),
        # an equation with a number on the left states no expression
        *(("7777777 = x^{2} - 4x - 21", "x^{2} - 4x - 21"), ("1 = x + y", "x + y")),
        # nor does a false equation in a list
        *(("7777777 = 74, 9, 31", "74, 9, 31"), (r"\{7 = 5, 6\}", r"\{5, 6\}")),
        # two numbers are not the interval between them
        *(("(-15, 15)", r"\pm 15"), ("[-15, 15]", r"\pm 15"), (r"(3-\sqrt{2}, 3+\sqrt{2})", r"3 \pm \sqrt{2}")),
        # `simplify` computed a power of seven million digits
        *((r"7777777 \ln(7)", r"\ln(7)"), (r"7777777^{77} \ln(7)", r"\ln(7)")),
    ],
)
def test_math_false_positives_of_transformed_answers(stated: str, gold: str, pool: MathPool) -> None:
    verdict = judge_math(rf"\boxed{{{stated}}}", gold, pool=pool)
    assert (verdict.correct, verdict.failed) == (False, False)
    assert verdict.reason != "exhausts_checker"


@pytest.mark.parametrize(
    ("stated", "gold"),
    [
        *(
            (r"\pi \approx 3.14", r"\pi"),
            (r"\frac{1}{3} \approx 0.33", "1/3"),
            (r"3\sqrt{2} \approx 4.24", r"\sqrt{18}"),
        ),
        *(("f(x) = x^2 + 1", "x^2 + 1"), ("x^2 + 1 = y", "y = x^2 + 1"), (r"15, -15", r"\pm 15")),
        (r"\lbrace 1, 2 \rbrace", r"\{2, 1\}"),
        # `\\ ` at the end of a row lost its backslash, and no matrix written so could be read
        (r"\begin{pmatrix} 1.0 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        (r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}", r"\begin{pmatrix} 1 & 2 \\  3 & \frac{8}{2} \end{pmatrix}"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        (r"\begin{pmatrix} a \\ b \end{pmatrix}", r"\begin{bmatrix} a \\ b \end{bmatrix}"),
    ],
)
def test_math_false_negatives_and_failures_of_transformed_answers(stated: str, gold: str, pool: MathPool) -> None:
    assert judge_math(rf"\boxed{{{stated}}}", gold, pool=pool).correct
