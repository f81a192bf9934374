"""Inputs that earlier implementations scored wrongly, each under its own name."""

import pytest

from egpo.errors import InputError
from egpo.rewards.tool_calls import judge_tool_calls
from tests.rewards.tool_calls.responses import THOUGHT, listed, plain, reason, tagged

BOTH_SYNTAXES = pytest.mark.parametrize("write", [tagged, listed])
WEATHER = [{"name": "weather", "arguments": {"city": "Paris"}}]
RIGHT = tagged(("weather", {"city": "Paris"}))


@BOTH_SYNTAXES
def test_a_list_is_compared_with_its_duplicates(write):
    assert reason(write(("f", {"a": [2, 1]})), [{"name": "f", "arguments": {"a": [1, 2, 2]}}]) == "wrong_value"


@BOTH_SYNTAXES
def test_a_list_is_compared_in_order(write):
    assert reason(write(("f", {"a": [2, 1]})), [{"name": "f", "arguments": {"a": [1, 2]}}]) == "wrong_value"


@BOTH_SYNTAXES
@pytest.mark.parametrize(
    ("written", "expected"), [(True, 1), (1, True), (False, 0), ([True], [1]), ({"b": 0}, {"b": False})]
)
def test_true_is_not_one(write, written, expected):
    assert reason(write(("f", {"a": written})), [{"name": "f", "arguments": {"a": expected}}]) == "wrong_value"


@BOTH_SYNTAXES
@pytest.mark.parametrize(("written", "expected"), [([], {}), ({}, [])])
def test_an_empty_list_is_not_an_empty_object(write, written, expected):
    assert reason(write(("f", {"a": written})), [{"name": "f", "arguments": {"a": expected}}]) == "wrong_value"


@pytest.mark.parametrize(
    "garbage",
    [
        "garbage",
        "<tool_call>garbage</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"a": 1}',
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 1, "a": 1}}</tool_call>',
        "[f(a=",
        "[f(a=b)]",
        "[f(a=1, a=1)]",
        '[{"name": "f", "arguments": {"a": 1}',
        "f(a=1)",
    ],
)
def test_the_same_garbage_on_both_sides_is_not_right(garbage):
    with pytest.raises(InputError, match="ground_truth"):
        plain(garbage, garbage)
    assert plain(garbage, "[f(a=1)]").reward == 0.0


def test_a_call_only_inside_the_thought_does_not_pay():
    text = f"<think>I could say {RIGHT}</think>\n\nI would rather not."
    for mode in ("strict_think", "plain", "shaped"):
        verdict = judge_tool_calls(text, WEATHER, mode=mode)
        assert (verdict.reward, verdict.correct, verdict.reason) == (0.0, False, "no_call")


def test_a_call_drafted_in_the_thought_does_not_spoil_the_answer():
    draft = tagged(("weather", {"city": "Rome"}))
    text = f"<think>Perhaps {draft} or <tool_call> and then [weather(city='Oslo')]</think>\n\n{RIGHT}"
    assert judge_tool_calls(text, WEATHER).reward == 1.0
    assert plain(text, WEATHER).reward == 1.0


@pytest.mark.parametrize("space", ["", "\n", "\n\n", "\n\n\n", " ", " \t\r\n", "\u00a0"])
def test_any_white_space_may_follow_the_closing_tag(space):
    assert judge_tool_calls(f"<think>hm</think>{space}{RIGHT}", WEATHER).reward == 1.0


@pytest.mark.parametrize("write", [tagged, listed])
def test_a_closing_tag_inside_an_argument_does_not_move_the_split(write):
    calls = ("note", {"text": "a </think> b"})
    truth = [{"name": "note", "arguments": {"text": "a </think> b"}}]
    assert judge_tool_calls(f"<think>hm</think>\n\n{write(calls)}", truth).reward == 1.0
    assert plain(write(calls), truth).reward == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "[f(a=1), g(b=2)]",
        "[f(a=1),g(b=2)]",
        "[ f( a = 1 ) , g( b = 2 ) ]",
        "[\n  f(a=1),\n  g(b=2),\n]",
        "[g(b=2), f(a=1)]",
    ],
)
def test_python_lists_of_several_calls_in_any_spacing(text):
    assert plain(text, '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {"b": 2}}]').reward == 1.0


def test_dotted_names():
    assert plain(
        "[geo.weather.now(city='Paris')]", [{"name": "geo.weather.now", "arguments": {"city": "Paris"}}]
    ).correct
    assert (
        reason("[geo.weather(city='Paris')]", [{"name": "geo_weather", "arguments": {"city": "Paris"}}]) == "wrong_name"
    )


@pytest.mark.parametrize("nothing", ["", "[]", [], (), " \n", "[ ]"])
def test_a_refusal_can_score(nothing):
    assert judge_tool_calls(f"{THOUGHT}None of the tools fits.", nothing).reward == 1.0
    assert judge_tool_calls(f"{THOUGHT}[]", nothing).reward == 1.0
    assert judge_tool_calls(THOUGHT + RIGHT, nothing).reason == "unexpected_call"
    assert judge_tool_calls(THOUGHT + RIGHT[:-5], nothing).reason == "unclosed_call"


@pytest.mark.parametrize(
    "answer",
    [
        '{"arguments": {"a": 1}, "name": "f"}',
        '[{"arguments": {}, "name": "f"}]',
        '{"name": "f", "parameters": {"a": 1}}',
        "f(a=1)\ng(b=2)",
        "f(a=1); g(b=2)",
        "```python\nf(a=1)\ng(b=2)\n```",
        "`f(a=1)`",
        "`f(a=1)`\n`g(b=2)`",
        "f(city=Oslo)",
        "<function=f><parameter=a>1</parameter></function>",
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]',
    ],
)
def test_an_attempt_in_another_syntax_is_no_refusal(answer):
    assert reason(answer, "") == reason(answer, "[f(a=1)]") == "bare_call"


@pytest.mark.parametrize(
    "answer",
    [
        "I cannot do that (no tool fits).",
        "Sorry (really)",
        "None of the tools, such as `f(a=1)`, fits (alas)",
        "Please tell me the city (e.g. Oslo)",
        "print() is a function (in Python)",
        "`sorry`",
        "Use `f(a=1)`",
        "Which date(s)?",
        "Total (net)\nTax (gross)",
        'The JSON {"name": "Bob", "arguments": 3} is nothing that I can use.',
        "get_weather(city) needs a city, which one?",
    ],
)
def test_a_refusal_may_have_parentheses_and_words_of_code(answer):
    assert reason(answer, "") == "correct"


@pytest.mark.parametrize("number", ["1e-400", "-1e-400", "0.001e-999", "4.9e-500"])
def test_a_number_too_small_for_a_double_is_not_zero(number):
    for zero in ("0", "0.0"):
        tagged_call = f'<think>hm</think><tool_call>{{"name": "f", "arguments": {{"a": {number}}}}}</tool_call>'
        for text in (tagged_call, f"<think>hm</think>[f(a={number})]"):
            verdict = judge_tool_calls(text, f"[f(a={zero})]")
            assert (verdict.correct, verdict.reason) == (False, "malformed_call")
    assert judge_tool_calls("<think>hm</think>[f(a=0e-400)]", "[f(a=0)]").correct
