"""BFCL's ground truths. (tests/bfcl holds the verdicts to the official checker's, on its own data.)"""

import pytest

from tests.rewards.tool_calls.responses import plain, reason

TYPES = {
    "s": {"type": "string"},
    "i": {"type": "integer"},
    "x": {"type": "float"},
    "b": {"type": "boolean"},
    "l": {"type": "array", "items": {"type": "string"}},
    "t": {"type": "tuple", "items": {"type": "integer"}},
    "d": {"type": "dict"},
    "r": {"type": "array", "items": {"type": "dict"}},
}


def judged(answer: str, allowed: dict, required: tuple[str, ...] = ()) -> str:
    tools = [{"name": "f", "parameters": {"type": "dict", "properties": TYPES, "required": list(required)}}]
    return reason(answer, [{"f": allowed}], tools=tools)


@pytest.mark.parametrize(
    ("answer", "allowed", "expected"),
    [
        ("[f(s='April 1, 2024')]", {"s": ["april 1 2024"]}, "correct"),
        ("[f(s='New-York_City.')]", {"s": ["new york city"]}, "correct"),
        ("[f(s='New York!')]", {"s": ["New York"]}, "wrong_value"),
        ('[f(s="it\'s")]', {"s": ['it"s']}, "correct"),
        ("[f(s=1)]", {"s": ["1"]}, "wrong_type"),
        ("[f(i=1)]", {"i": [2, 1]}, "correct"),
        ("[f(i=1.0)]", {"i": [1]}, "wrong_type"),
        ("[f(i=True)]", {"i": [1]}, "wrong_type"),
        ("[f(x=1)]", {"x": [1.0]}, "correct"),
        ("[f(x=True)]", {"x": [1.0]}, "wrong_type"),
        ("[f(x='1')]", {"x": [1.0]}, "wrong_type"),
        ("[f(b=1)]", {"b": [True]}, "wrong_type"),
        ("[f(b=True)]", {"b": [True, False]}, "correct"),
        ("[f(l=['A', 'b '])]", {"l": [["a", "B"]]}, "correct"),
        ("[f(l=['b', 'a'])]", {"l": [["a", "b"]]}, "wrong_value"),
        ("[f(l=['a', 'a'])]", {"l": [["a"]]}, "wrong_value"),
        ("[f(l=[1])]", {"l": [["a"]]}, "wrong_type"),
        ("[f(l=('a',))]", {"l": [["a"]]}, "wrong_type"),
        ("[f(l=[])]", {"l": ["", ["a"]]}, "correct"),
        ("[f(t=(1, 2))]", {"t": [[1, 2]]}, "correct"),
        ("[f(t=[1, 2])]", {"t": [[1, 2]]}, "correct"),
        ("[f(d={'k': 'V'})]", {"d": [{"k": ["v"], "o": ["", 1]}]}, "correct"),
        ("[f(d={'k': 'v', 'o': 2})]", {"d": [{"k": ["v"], "o": ["", 1]}]}, "wrong_value"),
        ("[f(d={'o': 1})]", {"d": [{"k": ["v"], "o": ["", 1]}]}, "wrong_value"),
        ("[f(d={'k': True})]", {"d": [{"k": [1]}]}, "wrong_value"),
        ("[f(d={'k': (1, 2)})]", {"d": [{"k": [[1, 2]]}]}, "wrong_type"),
        ("[f(r=[{'k': 1}, {'k': 2}])]", {"r": [[{"k": [1]}, {"k": [2, 3]}]]}, "correct"),
        ("[f(r=[{'k': 2}, {'k': 1}])]", {"r": [[{"k": [1]}, {"k": [2, 3]}]]}, "wrong_value"),
        ("[f(i='n')]", {"i": ["n"]}, "correct"),
        ("[f(i='N')]", {"i": ["n"]}, "wrong_value"),
        ("[f()]", {"s": ["a", ""]}, "correct"),
        ("[f()]", {"s": ["a"]}, "missing_argument"),
        ("[f(i=1)]", {"s": ["a", ""]}, "unknown_argument"),
        ("[f(z=1)]", {"z": [1]}, "unknown_argument"),
        ("[g(s='a')]", {"s": ["a"]}, "unknown_tool"),
    ],
)
def test_one_call(answer, allowed, expected):
    assert judged(answer, allowed) == expected


def test_what_the_function_requires_may_not_be_left_out():
    assert judged("[f()]", {"s": ["a", ""]}, required=("s",)) == "missing_argument"


@pytest.mark.parametrize(
    ("answer", "allowed", "expected"),
    [
        ("[f(a=1)]", {"a": [1.0]}, "correct"),
        ("[f(a=1.0)]", {"a": [1]}, "wrong_type"),
        ("[f(a=True)]", {"a": [1]}, "wrong_type"),
        ("[f(a=None)]", {"a": ["x", None]}, "correct"),
        ("[f(a='X.')]", {"a": [None, "x"]}, "correct"),
        ("[f(a=(1, 2))]", {"a": [[1, 2]]}, "correct"),
        ("[f(a=[True])]", {"a": [[1]]}, "wrong_value"),
        ("[f(a={'k': 1})]", {"a": [{"k": 1}]}, "correct"),
        ("[f(a='x')]", {"a": [""]}, "wrong_type"),
        ("[f()]", {"a": [""]}, "correct"),
    ],
)
def test_without_tools_the_answers_give_the_types(answer, allowed, expected):
    assert reason(answer, [{"f": allowed}]) == expected


@pytest.mark.parametrize("first", [0, 1])
def test_a_call_that_fits_two_answers_leaves_the_other_its_own(first):
    """Taken greedily, one of the two orders would fail."""
    calls = ["f(a=1)", "f(a=2)"]
    answers = [{"f": {"a": [1, 2]}}, {"f": {"a": [1]}}]
    assert plain(f"[{calls[first]}, {calls[1 - first]}]", answers).correct
    assert plain("[f(a=2), f(a=2)]", answers).reason == "wrong_value"


def test_the_number_of_calls_counts():
    assert reason("[f(a=1)]", [{"f": {"a": [1]}}, {"f": {"a": [1]}}]) == "too_few_calls"
    assert reason("[f(a=1), f(a=1)]", [{"f": {"a": [1]}}]) == "too_many_calls"
