"""Which reason a wrong call gets, with and without the tools at hand."""

import json

import pytest

from egpo.errors import InputError
from tests.rewards.tool_calls.responses import reason

TRUTH = "[f(a=1, b='x'), g(c=True)]"
PARAMETERS = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "b": {"type": "string"},
        "n": {"type": ["number", "null"]},
        "l": {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "boolean"}}}},
    },
    "required": ["a"],
}
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}},
    {"name": "g", "parameters": {"type": "dict", "properties": {"c": {"type": "boolean"}}, "required": ["c"]}},
    {"name": "h", "parameters": {}},
]


@pytest.mark.parametrize(
    ("answer", "without", "with_tools"),
    [
        ("[g(c=True), f(b='x', a=1)]", "correct", "correct"),
        ("[f(a=1.0, b='x'), g(c=True)]", "correct", "correct"),
        ("Nothing.", "no_call", "no_call"),
        ("[f(a=1, b='x')]", "too_few_calls", "too_few_calls"),
        ("[f(a=1, b='x'), g(c=True), g(c=True)]", "too_many_calls", "too_many_calls"),
        ("[f(a=1, b='x'), f(a=1, b='x')]", "wrong_name", "wrong_name"),
        ("[f(a=1, b='x'), G(c=True)]", "wrong_name", "unknown_tool"),
        ("[f(a=1, b='x'), h()]", "wrong_name", "wrong_name"),
        ("[f(a=1, b='y'), g(c=True)]", "wrong_value", "wrong_value"),
        ("[f(a=1, b='X'), g(c=True)]", "wrong_value", "wrong_value"),
        ("[f(a=1), g(c=True)]", "wrong_arguments", "wrong_arguments"),
        ("[f(b='x'), g(c=True)]", "wrong_arguments", "missing_argument"),
        ("[f(a=1, b='x', z=1), g(c=True)]", "wrong_arguments", "unknown_argument"),
        ("[f(a='1', b='x'), g(c=True)]", "wrong_value", "wrong_type"),
        ("[f(a=True, b='x'), g(c=True)]", "wrong_value", "wrong_type"),
        ("[f(a=1.5, b='x'), g(c=True)]", "wrong_value", "wrong_type"),
        ("[f(a=1, b=None), g(c=True)]", "wrong_value", "wrong_type"),
        ("[f(a=1, b='x'), g(c=1)]", "wrong_value", "wrong_type"),
        ("[f(a=1, b='x', n=None), g(c=True)]", "wrong_arguments", "wrong_arguments"),
        ("[f(a=1, b='x', n='1'), g(c=True)]", "wrong_arguments", "wrong_type"),
        ("[f(a=1, b='x', l=[{'k': 1}]), g(c=True)]", "wrong_arguments", "wrong_type"),
        ("[f(a=1, b='x', l=[{'k': True}]), g(c=True)]", "wrong_arguments", "wrong_arguments"),
    ],
)
def test_reasons(answer, without, with_tools):
    assert reason(answer, TRUTH) == without
    assert reason(answer, TRUTH, tools=TOOLS) == with_tools
    assert reason(answer, TRUTH, tools=json.dumps(TOOLS)) == with_tools


def test_the_ground_truth_rules_over_the_schema():
    assert reason("[f(z=1)]", "[f(z=1)]", tools=TOOLS) == "correct"


def test_parameters_in_xlam_s_form():
    tools = {
        "name": "f",
        "parameters": {
            "type": {"type": "str", "description": "a parameter that is called type"},
            "ids": {"type": "List[int], optional", "description": "some"},
            "limit": {"type": "int", "default": 10},
        },
    }
    for answer, expected in [
        ("[f(type=1)]", "wrong_type"),
        ("[f(ids=[1])]", "missing_argument"),
        ("[f(type='a', ids=1)]", "wrong_type"),
        ("[f(type='a', ids=[1], limit=3)]", "wrong_arguments"),
        ("[f(type='a', other=3)]", "unknown_argument"),
    ]:
        assert reason(answer, "[f(type='b')]", tools=tools) == expected


def test_additional_properties_are_welcome_where_the_schema_says_so():
    tools = [{"name": "f", "parameters": {"type": "object", "properties": {}, "additionalProperties": True}}]
    assert reason("[f(z=1)]", "[f(y=1)]", tools=tools) == "wrong_arguments"


@pytest.mark.parametrize(
    "tools",
    [
        "not JSON",
        7,
        [1],
        [{"type": "function"}],
        {},
        [{"name": "f", "parameters": [1]}],
        [{"name": "f", "parameters": {"properties": {"a": 1}}}],
        [{"name": "f", "parameters": {"properties": {}, "required": True}}],
    ],
)
def test_malformed_tools_are_the_user_s_mistake(tools):
    with pytest.raises(InputError, match="tools"):
        reason("[f(a=2)]", "[f(a=1)]", tools=tools)
