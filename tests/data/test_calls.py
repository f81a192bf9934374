"""Calls in datasets, from every syntax to Hermes text."""

import json
from keyword import iskeyword

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.data.calls import (
    Call,
    CallsError,
    hermes_text,
    literal,
    parse_hermes,
    parse_openai,
    parse_python_list,
    tool_responses,
)
from tests.data.qwen3 import render

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
plain_names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: not iskeyword(name) and name not in ("true", "false", "null")
)
names = st.lists(plain_names, min_size=1, max_size=2).map(".".join)
calls_strategy = st.lists(st.tuples(names, st.dictionaries(plain_names, values, max_size=3)), max_size=3)


def spelt(name, arguments):
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


@given(calls=calls_strategy)
def test_a_python_list_becomes_the_same_calls(calls):
    text = "[" + ", ".join(spelt(name, arguments) for name, arguments in calls) + "]"
    assert parse_python_list(text) == [Call(name, arguments) for name, arguments in calls]


@given(calls=calls_strategy)
def test_hermes_text_round_trips_and_is_what_the_template_writes(calls):
    made = [Call(name, arguments) for name, arguments in calls]
    assert parse_hermes(hermes_text(made)) == made
    tool_calls = [{"type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in made]
    turn = render([{"role": "assistant", "content": "", "tool_calls": tool_calls}])
    assert turn == f"<|im_start|>assistant\n{hermes_text(made)}<|im_end|>\n"


@given(calls=calls_strategy)
def test_openai_calls_bare_wrapped_and_with_arguments_as_text(calls):
    made = [Call(name, arguments) for name, arguments in calls]
    bare = [{"name": c.name, "arguments": c.arguments} for c in made]
    assert parse_openai(bare) == made
    assert parse_openai([{"id": "1", "type": "function", "function": call} for call in bare]) == made
    assert parse_openai([{**call, "arguments": json.dumps(call["arguments"])} for call in bare]) == made


def test_the_documented_text():
    calls = parse_python_list("[f(1, 'é', b=True), g.h(x=[1, 2.0, None], y={'a': -1})]")
    assert hermes_text(calls) == (
        '<tool_call>\n{"name": "f", "arguments": {"arg_0": 1, "arg_1": "é", "b": true}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g.h", "arguments": {"x": [1, 2.0, null], "y": {"a": -1}}}\n</tool_call>'
    )


def test_json_constants_in_a_python_list():
    assert parse_python_list("[f(a=true, b=false, c=null)]") == [Call("f", {"a": True, "b": False, "c": None})]


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "[f(]",
        "f(1)",
        "[1, 2]",
        "[f]",
        "[f(a=g())]",
        "[f(a=open('x'))]",
        "[f(**{})]",
        "[f(*a)]",
        "[f()()]",
        "[(lambda: 1)()]",
        "[f(a={1, 2})]",
        "[f(a=b'x')]",
        "[f(a=1j)]",
        "[f(a=1e999)]",
        "[f(a=x)]",
        "[" * 5000 + "]" * 5000,
        "[f(a=" + "-" * 100_000 + "1)]",
        "[f(a='\x00')]",
        "[" + "f(1)," * 300_000 + "]",
        "[f(a=" + "9" * 5000 + ")]",
        "[f(a=1, a=2)]",
        "[" + "a." * 50_000 + "f()]",
        "[f(a=" + "1+" * 50_000 + "1)]",
    ],
)
def test_what_is_no_list_of_calls(text):
    with pytest.raises(CallsError):
        parse_python_list(text)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>{}</tool_call>",
        '<tool_call>{"name": "f"}',
        "<tool_call>x</tool_call>",
        '<tool_call>{"name": 1}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{"}</tool_call>',
    ],
)
def test_what_is_no_hermes_call(text):
    with pytest.raises(CallsError):
        parse_hermes(text)


def test_a_tag_inside_an_argument_is_an_argument():
    call = Call("f", {"a": "</tool_call><tool_call>"})
    assert parse_hermes(call.hermes()) == [call]


def test_responses_are_json_where_they_are_not_text():
    assert tool_responses([{"a": True, "b": None}, "plain 'text'", [1, "é"]]) == (
        '<tool_response>\n{"a": true, "b": null}\n</tool_response>\n'
        "<tool_response>\nplain 'text'\n</tool_response>\n"
        '<tool_response>\n[1, "é"]\n</tool_response>'
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": true}', {"a": True}),
        ("{'a': True, 'b': None}", {"a": True, "b": None}),
        ("it's fine", "it's fine"),
        ("{1, 2}", "{1, 2}"),
        ("1 + 1", "1 + 1"),
        ("__import__('os')", "__import__('os')"),
        ("[" * 100_000, "[" * 100_000),
        ("\ud800", "\ud800"),
        ("", ""),
    ],
)
def test_a_text_that_spells_a_value(text, value):
    assert literal(text) == value
