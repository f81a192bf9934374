"""Exact arithmetic: equal to Python's own on what is an expression, a fault on everything else."""

import ast
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.rewards.countdown import FAULTS, MAX_CHARACTERS, evaluate


def expressions() -> st.SearchStrategy[str]:
    numbers = st.integers(0, 99).map(str)
    return st.recursive(
        numbers,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["+", "-", "*", "/", " + ", " - "]), inner).map("".join),
            inner.map(lambda e: f"({e})"),
            inner.map(lambda e: f"-{e}"),
        ),
        max_leaves=12,
    )


def reference(text: str) -> Fraction:
    """Python's grammar over fractions: the syntax tree of a generated expression, walked by hand."""

    def walk(node: ast.expr) -> Fraction:
        match node:
            case ast.Constant(value=int(value)):
                return Fraction(value)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -walk(operand)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return walk(left) + walk(right)
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return walk(left) - walk(right)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return walk(left) * walk(right)
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return walk(left) / walk(right)
        raise AssertionError(ast.dump(node))

    return walk(ast.parse(text, mode="eval").body)


@given(expressions())
def test_the_value_is_the_exact_one(text: str) -> None:
    found = evaluate(text)
    try:
        assert (found.value, found.fault) == (reference(text), "")
    except ZeroDivisionError:
        assert (found.value, found.fault) == (None, "division_by_zero")


@given(expressions())
def test_the_integers_used_are_those_written(text: str) -> None:
    digits = "".join(c if c in "0123456789" else " " for c in text)
    assert evaluate(text).numbers == tuple(map(int, digits.split()))


@given(st.text(alphabet="0123456789+-*/() ×÷−=.e_", max_size=30))
def test_any_string_has_a_value_or_a_fault(text: str) -> None:
    found = evaluate(text)
    assert (found.value is None) == bool(found.fault)
    assert found.fault in {"", *FAULTS}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1+2*3", 7),
        ("(1+2)*3", 9),
        ("8-4-2", 2),
        ("8/4/2", 1),
        ("-2*3", -6),
        ("2*-3", -6),
        ("--3", 3),
        ("-(1+2)", -3),
        ("1/3*3", 1),
        ("3 × 4 − 6 ÷ 2", 9),
        ("\n( 1\t+ 2 )\r\n", 3),
        ("1/3", Fraction(1, 3)),
    ],
)
def test_values(text: str, value: Fraction) -> None:
    assert evaluate(text).value == value


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "empty_expression"),
        (" \n", "empty_expression"),
        ("1+1" + "+1" * MAX_CHARACTERS, "expression_too_long"),
        ("(" * 10_000_000, "expression_too_long"),
        ("2.5*4", "illegal_character"),
        ("1e2", "illegal_character"),
        ("1_2*2", "illegal_character"),
        ("3 # 1 8", "illegal_character"),
        ("٣+1", "illegal_character"),
        ("1\x00+2", "illegal_character"),
        ("1+\ud800", "illegal_character"),
        ("2^3", "illegal_character"),
        ("f(1)", "illegal_character"),
        ("2**3", "malformed_expression"),
        ("4//2", "malformed_expression"),
        ("1 2", "malformed_expression"),
        ("2(3)", "malformed_expression"),
        ("(2)3", "malformed_expression"),
        ("(2)(3)", "malformed_expression"),
        ("()", "malformed_expression"),
        ("(1", "malformed_expression"),
        ("1)", "malformed_expression"),
        (")1(", "malformed_expression"),
        ("1+", "malformed_expression"),
        ("+1", "malformed_expression"),
        ("-", "malformed_expression"),
        ("1/0)", "malformed_expression"),
        ("1/0", "division_by_zero"),
        ("1/(2-2)", "division_by_zero"),
        ("0*(1/0)", "division_by_zero"),
        ("1/(1/0)", "division_by_zero"),
    ],
)
def test_faults(text: str, fault: str) -> None:
    assert evaluate(text).fault == fault


def test_a_division_by_zero_still_tells_the_integers() -> None:
    assert evaluate("7/(3-3)").numbers == (7, 3, 3)


def test_the_longest_and_the_deepest_cost_nothing() -> None:
    half = MAX_CHARACTERS // 2 - 1
    assert evaluate("(" * half + "7" + ")" * half).value == 7
    assert evaluate("-" * (MAX_CHARACTERS - 1) + "7").value == -7
    assert evaluate("9" * MAX_CHARACTERS).value == int("9" * MAX_CHARACTERS)
    product = evaluate("*".join(["9999"] * (MAX_CHARACTERS // 5)))
    assert product.value == 9999 ** (MAX_CHARACTERS // 5)
    assert evaluate("/".join(["9999"] * (MAX_CHARACTERS // 5))).value == Fraction(1, 9999 ** (MAX_CHARACTERS // 5 - 2))


@pytest.mark.parametrize(
    ("text", "value"), [("8/-2/2", -2), ("8/-2*2", -8), ("-2-3", -5), ("-2*-3/-1", -6), ("-8/2/2", -2), ("2--3-1", 4)]
)
def test_a_unary_minus_binds_tighter_than_what_follows_it(text: str, value: int) -> None:
    assert evaluate(text).value == value
