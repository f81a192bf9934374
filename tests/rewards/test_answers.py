"""Extraction: the last complete mark counts, any string goes, and a number has one spelling."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.rewards.answers import last_bold, last_boxed, last_marked, last_tagged, plain_number, read_number


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<answer>1</answer>", "1"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("<answer>1</answer> or <answer>2", "1"),
        ("<answer><answer>2</answer>", "2"),
        ("<answer>1</answer></answer>", "1</answer>"),
        ("<answer></answer>", ""),
        ("</answer>1<answer>", None),
        ("<Answer>1</Answer>", None),
        ("", None),
    ],
)
def test_the_last_complete_tag_counts(text: str, found: str | None) -> None:
    assert last_tagged(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a #### 1 #### 2", "2"),
        ("####18", "18"),
        ("#### 18\nand so on", "18"),
        ("####\n18\nmore", "18"),
        ("#####18", "18"),
        ("####", ""),
        ("### 18", None),
    ],
)
def test_the_last_marker_counts(text: str, found: str | None) -> None:
    assert last_marked(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"\boxed{1 \boxed{2}", "2"),
        (r"\boxed{a\boxed{b}}", "b"),
        (r"\boxed {3}", "3"),
        (r"\fbox{3}", "3"),
        (r"\boxed{}", ""),
        (r"\boxed{1\}", None),
        (r"\boxed", None),
        (r"\boxed 3", None),
        ("boxed{3}", None),
        ("", None),
    ],
)
def test_the_last_complete_box_counts(text: str, found: str | None) -> None:
    assert last_boxed(text) == found


@given(st.text(alphabet=r"\{}boxed1 ", max_size=60))
def test_a_box_is_balanced_and_stands_in_the_text(text: str) -> None:
    found = last_boxed(text)
    if found is not None:
        assert "{" + found + "}" in text
        bare = found.replace("\\\\", "").replace("\\{", "").replace("\\}", "")
        assert bare.count("{") == bare.count("}")


@given(st.text(max_size=30), st.text(alphabet=string.ascii_letters + string.digits + "+-/ ", max_size=20))
def test_what_is_boxed_is_found_whatever_stands_before_it(before: str, answer: str) -> None:
    assert last_boxed(f"{before} \\boxed{{{answer}}}") == answer


def test_bold() -> None:
    assert last_bold("the answer is **18**.") == "18"
    assert last_bold("**1** or **2**") == "2"
    assert last_bold("**1") is None
    assert last_bold("***") is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("18", "18"),
        (" $18", "18"),
        (r"\$18", "18"),
        ("18.", "18"),
        ("18.00", "18"),
        ("**18**", "18"),
        ("**$1,080.50**", "1080.5"),
        ("018", "18"),
        ("0.50", "0.5"),
        (".5", "0.5"),
        ("-18", "-18"),
        ("−18", "-18"),
        ("-$18", "-18"),
        ("$-18", "-18"),
        ("+18", "18"),
        ("-0.0", "0"),
        ("18%", "18"),
        (r"18\%", "18"),
        ("18 apples", "18"),
        (r"18\text{ dollars}", "18"),
        ("$18$", "18"),
        ("1{,}080", "1080"),
        ("109,200,000", "109200000"),
        ("€5", "5"),
    ],
)
def test_spellings_of_a_number(text: str, number: str) -> None:
    assert read_number(text) == number


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "x",
            "1,8",
            "1,08",
            "1,0800",
            ",180",
            "1e2",
            "18/19",
            "18 or 19",
            "1.2.3",
            "1_8",
            "18 19",
            "x = 18",
            "- -1",
        ),
        *("٣", "²", "１８", "18²3", "nan", "inf", ".", "-", "$", "--5", "5:30", "0x12"),
    ],
)
def test_what_is_not_one_number(text: str) -> None:
    assert read_number(text) is None


def test_other_scripts_have_no_digits_here() -> None:
    # `int("٣")` is 3 and `"²".isdigit()` is true; neither may pass for an answer.
    assert read_number("18 ٣") is None
    assert plain_number("1٣") is None


def test_a_numeral_of_millions_of_digits_is_no_answer() -> None:
    assert read_number("9" * 10_000_000) is None
    assert plain_number("9" * 10_000_000) is None


def test_a_plain_number_has_nothing_around_it() -> None:
    assert plain_number("1,080") == "1080"
    assert plain_number(r"\$18") == "18"
    assert plain_number("18x") is None
    assert plain_number("18%") is None


@given(st.integers(), st.integers(0, 3))
def test_every_spelling_of_an_integer_is_the_same_numeral(value: int, zeros: int) -> None:
    point = "." + "0" * zeros
    assert read_number(f"{value:,}{point}") == read_number(f"**${value}{point}**") == str(value)
