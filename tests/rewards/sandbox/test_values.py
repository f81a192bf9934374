"""The wire format between program and tests."""

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.rewards.sandbox.inside.equality import same
from egpo.rewards.sandbox.inside.values import decode, encode
from egpo.rewards.sandbox.jobs import ProgramOutcome, read_outcomes

text = st.text(st.characters(codec=None))
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | text
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
hashable = st.recursive(scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=6)
plain = st.recursive(
    hashable,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(hashable, inner, max_size=4) | st.sets(hashable, max_size=4)
    ),
    max_leaves=20,
)


def refuse(value: object) -> int:
    raise AssertionError(f"{value!r} is plain data")


@given(plain)
def test_plain_data_comes_back_with_its_types(value: object) -> None:
    back = decode(encode(value, refuse), refuse)
    assert back == value
    assert repr(type(back)) == repr(type(value))


@given(st.binary(max_size=200))
def test_garbage_is_a_value_error_and_nothing_else(data: bytes) -> None:
    with suppress(ValueError):
        decode(data, lambda number: number)


@given(plain, st.integers(0, 400), st.binary(min_size=1, max_size=3))
def test_damaged_values_are_a_value_error_and_nothing_else(value: object, at: int, damage: bytes) -> None:
    data = encode(value, refuse)
    with suppress(ValueError):
        decode(data[:at] + damage + data[at + 1 :], lambda number: number)


@pytest.mark.parametrize(
    "data", [b"f\0\0\0\x080x1p9999", b"l\xff\xff\xff\xff", b"l\0\0\0\1" * 5000, b"S\0\0\0\1l\0\0\0\0", b""]
)
def test_hostile_bytes(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        decode(data, refuse)


@pytest.mark.parametrize(
    "name", ["os.system", "builtins.eval", "builtins.range", "datetime.date", "decimal.Decimal", "", 3, []]
)
def test_only_known_classes_are_built_and_only_from_what_fits(name: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        decode(b"o" + encode((name, "x", "y", "z"), refuse), refuse)


def test_subclasses_lose_their_tricks() -> None:
    class Yes(int):
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 0

    back = decode(encode([Yes(1)], refuse), refuse)
    assert back != [2]
    assert type(back[0]) is int


def test_references_go_through_the_callers_table() -> None:
    things = [object()]
    data = encode(["x", things[0]], lambda value: things.index(value))
    assert decode(data, things.__getitem__) == ["x", things[0]]


def test_nesting_is_bounded() -> None:
    value: list[object] = []
    for _ in range(10_000):
        value = [value]
    with pytest.raises(ValueError, match="deep"):
        encode(value, refuse)


@given(plain)
def test_every_value_is_the_same_as_itself(value: object) -> None:
    assert same(value, value)


@given(st.floats(), st.floats())
def test_sameness_is_symmetric(left: float, right: float) -> None:
    assert same(left, right) == same(right, left)
    if 1e-6 < abs(left) < 1e300:
        assert same(left, left * (1 + 1e-12))
        assert not same(left, left * 1.001)
    assert same(left, left)
    assert math.isinf(left) == same(left, math.copysign(math.inf, left))


@given(st.binary(max_size=300))
def test_reports_are_read_without_trust(data: bytes) -> None:
    assert all(isinstance(outcome, ProgramOutcome) for outcome in read_outcomes(data))


def test_a_report_that_is_cut_off_ends_the_list() -> None:
    start = b"ready 0 0 0\n"
    whole = start + b"exit 0 3 2\noutERok 0 0 0\n"
    assert [outcome.status for outcome in read_outcomes(whole)] == ["exit", "ok"]
    assert read_outcomes(whole)[0] == ProgramOutcome("exit", 0, b"out", "ER")
    assert read_outcomes(whole[: len(start) + 14]) == ()
    assert read_outcomes(start + b"exit 0 -3 3\nabc") == ()
