"""Texts written to crash, to stall or to fill the memory. A verdict comes out, and it is never `correct`."""

import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egpo.rewards.tool_calls import REASONS, judge_tool_calls

TRUTH = "[f(a=1)]"
MANY = 10_000_000
MODES = ("strict_think", "plain", "shaped")

HOSTILE = {
    "nothing but tags": "<tool_call>" * (MANY // 11),
    "nothing but closing tags": "</tool_call>" * (MANY // 12),
    "nothing but thoughts": "<think></think>" * (MANY // 15),
    "opened thoughts": "<think>" * (MANY // 7),
    "deep list": "[f(a=" + "[" * MANY,
    "deep parentheses": "[f(a=" + "(" * 900_000 + ")" * 90_000,
    "deep dictionaries": "[f(a=" + "{'a':" * (MANY // 5),
    "deep calls": "[" + "f(" * (MANY // 2),
    "signs": "[f(a=" + "-" * MANY + "1)]",
    "dots": "[f" + ".f" * (MANY // 2) + "(a=1)]",
    "dots in a short one": "[f" + ".f" * 100_000 + "(a=1)]",
    "operators": "[f(a=" + "1+" * 200_000 + "1)]",
    "subscripts": "[f(a=1)" + "[0]" * 200_000 + "]",
    "strings side by side": "[f(a=" + "''" * 400_000 + ")]",
    "escapes": "[f(a='" + "\\x" * 400_000 + "')]",
    "open quotes": "[f(a=" + "'\\'" * 300_000,
    "triple quotes": "[f(a=" + '"""' + '""\\"' * 200_000,
    "digits": "[f(a=" + "9" * 900_000 + ")]",
    "digits of a fraction": "[f(a=0." + "9" * 900_000 + ")]",
    "exponent": "[f(a=1e" + "9" * 900_000 + ")]",
    "commas": "[f(a=1" + "," * MANY,
    "white space": "[" + " " * MANY,
    "white space in a tag": "<tool_call>" + " " * MANY,
    "white space in a short tag": '<tool_call>{"name": "f", "arguments": {}}' + " " * 900_000,
    "many calls": "[" + "f(a=1)," * 50_000 + "]",
    "many tagged calls": '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>' * 16_000,
    "deep JSON": '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 900_000,
    "deep JSON, whole": '<tool_call>{"name":"f","arguments":{"a":' + "[" * 400_000 + "]" * 400_000 + "}}</tool_call>",
    "deep JSON objects": '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 180_000,
    "deep JSON in a string": '<tool_call>{"name": "f", "arguments": "' + "[" * 900_000 + '"}</tool_call>',
    "JSON digits": '<tool_call>{"name": "f", "arguments": {"a": ' + "9" * 900_000 + "}}</tool_call>",
    "JSON fraction": '<tool_call>{"name": "f", "arguments": {"a": 0.' + "9" * 900_000 + "}}</tool_call>",
    "JSON quotes": '<tool_call>{"name": "f", "arguments": {"a": "' + '\\"' * 450_000,
    "JSON quotes and brackets": '<tool_call>{"name": "f", "arguments": {"a": [' + '"\\"[' * 200_000,
    "empty objects": '<tool_call>{"name": "f", "arguments": {"a": [' + "{}," * 300_000 + "{}]}}</tool_call>",
    "fences": "```" * (MANY // 3),
    "a fence": "```" + " " * MANY,
    "prose": "word " * (MANY // 5),
    "a bare call": "f(" + "a=1," * 250_000 + ")",
    "NUL": "\x00" * MANY,
    "NUL in a call": "[f(a='\x00')]",
    "lone surrogates": "\ud800" * 1000 + "[f(a='\udfff')]",
    "a lone surrogate in a call": "[f(a='\ud800')]",
    "an escaped lone surrogate": '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>',
    "unicode digits": "[f(a=١)]",
    "unicode name": "[ｆ(a=1)]",
    "unicode white space": "[f(a\u2003=\u20031)\u2029, 2]",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_get_a_verdict(name):
    for mode in MODES:
        thought = "" if mode == "plain" else "<think>hm</think>"
        verdict = judge_tool_calls(thought + HOSTILE[name], TRUTH, mode=mode)
        assert verdict.reason in REASONS
        assert not verdict.correct
        assert not verdict.failed


@pytest.mark.parametrize("name", ["deep list", "deep JSON, whole", "deep calls", "JSON digits", "digits"])
def test_what_is_too_large_says_so(name):
    assert judge_tool_calls(HOSTILE[name], TRUTH, mode="plain").reason == "over_limit"


def test_a_small_stack_is_enough():
    """A worker thread may have little room: 60 levels are read without leaning on Python's recursion limit."""
    deep = "[" * 60 + "]" * 60
    texts = [f"[f(a={deep})]", f'<tool_call>{{"name": "f", "arguments": {{"a": {deep}}}}}</tool_call>']
    verdicts = []

    def judge():
        verdicts.extend(judge_tool_calls(text, texts[0], mode="plain").correct for text in texts)

    size = threading.stack_size(256 * 1024)
    try:
        worker = threading.Thread(target=judge)
        worker.start()
        worker.join()
    finally:
        threading.stack_size(size)
    assert verdicts == [True, True]


def test_an_unlimited_length_of_integers_changes_nothing():
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        assert judge_tool_calls(HOSTILE["digits"], TRUTH, mode="plain").reason == "over_limit"
    finally:
        sys.set_int_max_str_digits(limit)


pieces = st.sampled_from(
    [
        "<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {"a": 1}}', "[f(a=1)]", "[f(",
        "a=", "1", ")]", "\n", " ", "{", "}", "[", "]", '"', "'", "\\", "```", '"name": ', '"arguments": ', ",", ":",
    ]
)  # fmt: skip


@settings(max_examples=1500)
@given(
    st.lists(pieces | st.text(max_size=4), max_size=12).map("".join),
    st.sampled_from(MODES),
    st.sampled_from([TRUTH, "[]"]),
)
def test_no_text_raises(text, mode, truth):
    verdict = judge_tool_calls(text, truth, mode=mode)
    assert verdict.reason in REASONS
    assert verdict.correct == (verdict.reason == "correct")
    assert not verdict.failed
