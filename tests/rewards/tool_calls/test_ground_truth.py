"""The forms of a ground truth."""

import numpy as np
import pytest

from egpo.errors import InputError
from egpo.rewards.tool_calls import Call, judge_tool_calls, read_ground_truth
from egpo.rewards.tool_calls.possible_answers import PossibleCall
from tests.rewards.tool_calls.responses import tagged

F1, G2 = Call("f", {"a": 1}), Call("g.h", {"b": [2, None]})


@pytest.mark.parametrize(
    "form",
    [
        "[f(a=1), g.h(b=[2, None])]",
        tagged(("f", {"a": 1}), ("g.h", {"b": [2, None]})),
        "<think>hm</think>\n\n[f(a=1), g.h(b=[2, None])]",
        '[{"name": "f", "arguments": {"a": 1}}, {"name": "g.h", "arguments": {"b": [2, null]}}]',
        '[{"name": "f", "arguments": "{\\"a\\": 1}"}, {"name": "g.h", "arguments": {"b": [2, null]}}]',
        [{"name": "f", "arguments": {"a": 1}}, {"name": "g.h", "arguments": {"b": [2, None]}}],
        ({"name": "f", "arguments": {"a": 1}}, {"name": "g.h", "arguments": {"b": (2, None)}}),
        [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
            {"function": {"name": "g.h", "arguments": {"b": [2, None]}}},
        ],
        np.array([{"name": "f", "arguments": {"a": np.int64(1)}}, {"name": "g.h", "arguments": {"b": [2, None]}}]),
    ],
)
def test_every_form_says_the_same(form):
    assert read_ground_truth(form) == (F1, G2)


@pytest.mark.parametrize(
    "form", [{"name": "f", "arguments": {"a": 1}}, '{"name": "f", "arguments": {"a": 1}}', np.array("[f(a=1)]")]
)
def test_one_call_may_stand_alone(form):
    assert read_ground_truth(form) == (F1,)


@pytest.mark.parametrize("form", ["", "\n", "[]", [], (), np.array([])])
def test_no_call(form):
    assert read_ground_truth(form) == ()


@pytest.mark.parametrize("form", [[{"f": {"a": [1, ""]}}], {"f": {"a": [1, ""]}}, '[{"f": {"a": [1, ""]}}]'])
def test_bfcl_possible_answers(form):
    assert read_ground_truth(form) == (PossibleCall("f", {"a": [1, ""]}),)


def test_a_function_called_name():
    assert read_ground_truth([{"name": {"a": [1]}}]) == (PossibleCall("name", {"a": [1]}),)


@pytest.mark.parametrize(
    "form",
    [
        None,
        7,
        "I am sorry.",
        "null",
        "[f(a=1)",
        "[f(a=b)]",
        "f(a=1)",
        "[f(a=1)] thanks",
        "[1]",
        '{"name": "f"}',
        '[{"name": "f", "parameters": {}}]',
        '[{"name": "f", "arguments": {"a": NaN}}]',
        '[{"name": "f", "arguments": {"a": 1, "a": 2}}]',
        '[{"name": "f", "arguments": []}]',
        "<tool_call>{}</tool_call>",
        "<tool_call>",
        "<think>cut off",
        [{"name": "f", "arguments": {"a": float("nan")}}],
        [{"name": "f", "arguments": {"a": {1: 2}}}],
        [{"name": "f", "arguments": {"a": {1, 2}}}],
        [{"f": {"a": [1]}, "g": {}}],
        [{"f": {"a": 1}}],
        [{"f": [1]}],
        [{}],
        ["f(a=1)"],
        [{"name": "f", "arguments": {}}, {"f": {"a": [1]}}],
        "\ud800\x00",
    ],
)
def test_a_malformed_ground_truth_is_the_user_s_mistake(form):
    with pytest.raises(InputError, match="ground_truth") as refusal:
        judge_tool_calls("[f(a=1)]", form, mode="plain")
    assert refusal.value.exit_code == 2
    assert "[] where no call is expected" in str(refusal.value)


def test_a_ground_truth_nested_too_deep_is_refused():
    deep: list = []
    deep.append(deep)
    with pytest.raises(InputError, match="over_limit"):
        read_ground_truth([{"name": "f", "arguments": {"a": deep}}])
