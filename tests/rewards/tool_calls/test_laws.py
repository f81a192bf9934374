"""What holds for all calls, whatever they say."""

import json

from hypothesis import given
from hypothesis import strategies as st

from egpo.tool_calls.calls import canonical, same_value
from tests.rewards.tool_calls.responses import listed, plain, tagged

names = st.from_regex(r"[a-z_][a-z0-9_]{0,6}(\.[a-z]{1,4}){0,2}", fullmatch=True)
keys = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)
a_call = st.tuples(names, st.dictionaries(keys, values, max_size=4))
some_calls = st.lists(a_call, min_size=1, max_size=4)


def as_objects(calls):
    return [{"name": name, "arguments": arguments} for name, arguments in calls]


@given(some_calls, st.randoms(use_true_random=False))
def test_the_expected_calls_are_right_in_every_syntax_order_and_form(calls, random):
    shuffled = random.sample(calls, len(calls))
    turned = [(name, dict(random.sample(list(arguments.items()), len(arguments)))) for name, arguments in shuffled]
    truths = [as_objects(calls), json.dumps(as_objects(calls)), tagged(*calls), listed(*calls)]
    for truth in truths:
        assert plain(tagged(*turned), truth).correct
        assert plain(listed(*turned), truth).correct


@given(some_calls, st.data())
def test_one_call_more_or_less_is_wrong(calls, data):
    extra = data.draw(a_call)
    assert plain(tagged(*calls, extra), as_objects(calls)).reason == "too_many_calls"
    assert plain(tagged(*calls[:-1]), as_objects(calls)).reason == ("too_few_calls" if len(calls) > 1 else "no_call")


@given(a_call, a_call)
def test_two_calls_are_right_for_each_other_only_if_equal(one, other):
    equal = one[0] == other[0] and _with_kinds(one[1]) == _with_kinds(other[1])
    assert plain(tagged(one), as_objects([other])).correct == equal


@given(values, values)
def test_sameness_is_equality_of_value_and_kind(a, b):
    assert same_value(a, a)
    assert same_value(a, b) == same_value(b, a) == (_with_kinds(a) == _with_kinds(b)) == (canonical(a) == canonical(b))


@given(values)
def test_a_changed_leaf_is_never_the_same(value):
    for changed in _changes(value):
        assert not same_value(value, changed)


def _with_kinds(value):
    """A form that Python's == compares as JSON values should be: each value beside its kind."""
    if isinstance(value, dict):
        return "object", {key: _with_kinds(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return "array", [_with_kinds(inner) for inner in value]
    return type(value).__name__ if isinstance(value, bool | str | None) else "number", value


def _changes(value):
    """The same value with one leaf changed, or one item more."""
    if isinstance(value, dict):
        yield {**value, "one more key": None}
        for key, inner in value.items():
            yield from ({**value, key: changed} for changed in _changes(inner))
    elif isinstance(value, list):
        yield [*value, None]
        yield from (
            [*value[:at], changed, *value[at + 1 :]] for at, inner in enumerate(value) for changed in _changes(inner)
        )
    elif isinstance(value, bool):
        yield from (not value, int(value), str(value))
    elif isinstance(value, str):
        yield from (value + " ", [value])
    elif value is None:
        yield from (False, 0, "", [], {})
    else:
        yield from (bool(value), str(value), 0 if value else 1, [value])
