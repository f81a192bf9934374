"""Modes, and what a well-formed thought is."""

import pytest

from egpo.errors import InputError
from egpo.rewards.tool_calls import judge_tool_calls
from tests.rewards.tool_calls.responses import THOUGHT, tagged

TRUTH = "[f(a=1)]"
INVISIBLE = ("\u200b", "\u200d", "\u2060", "\u00ad", "\ufeff", "\u00a0", "\u3000", "\u2800", "\u3164", "\ufe0f", "\x00")
RIGHT, WRONG = tagged(("f", {"a": 1})), tagged(("f", {"a": 2}))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (THOUGHT + RIGHT, "correct"),
        ("opened by the prompt</think>" + RIGHT, "correct"),
        ("\n <think>white space before is none</think>" + RIGHT, "correct"),
        (f"<think>hm</think>Let me call it.\n{RIGHT}\nDone.", "correct"),
        (RIGHT, "no_thinking"),
        ("", "no_thinking"),
        ("<think>cut off " + RIGHT, "thinking_not_closed"),
        ("<think></think>" + RIGHT, "empty_thinking"),
        ("<think>\n\n</think>\n\n" + RIGHT, "empty_thinking"),
        ("</think>" + RIGHT, "empty_thinking"),
        *((f"<think>{mark}</think>{RIGHT}", "empty_thinking") for mark in INVISIBLE),
        (f"<think>{''.join(INVISIBLE)}</think>{RIGHT}", "empty_thinking"),
        *((f"<think>{mark}hm</think>{RIGHT}", "correct") for mark in INVISIBLE),
        *((f"<think>{mark}</think>{RIGHT}", "correct") for mark in ("?", "é", "数", "😀", "\u0301")),
        ("Well, <think>hm</think>" + RIGHT, "text_before_thinking"),
        (RIGHT + "<think>hm</think>", "text_before_thinking"),
        ("<think>a <think>b</think>" + RIGHT, "nested_thinking"),
        (f"<think>a</think><think>b</think>{RIGHT}", "thinking_tag_in_answer"),
        (f"<think>a</think>{RIGHT}</think>", "thinking_tag_in_answer"),
        (f"<think>a</think>b</think>{RIGHT}", "thinking_tag_in_answer"),
        (THOUGHT + WRONG, "wrong_value"),
        (THOUGHT, "no_call"),
    ],
)
def test_strict_think(text, reason):
    verdict = judge_tool_calls(text, TRUTH)
    assert (verdict.reason, verdict.reward) == (reason, float(reason == "correct"))


@pytest.mark.parametrize(
    ("text", "reward", "reason"),
    [
        (THOUGHT + RIGHT, 1.1, "correct"),
        (THOUGHT + WRONG, 0.1, "wrong_value"),
        (RIGHT, 1.0, "no_thinking"),
        (WRONG, 0.0, "no_thinking"),
        ("<think></think>" + RIGHT, 1.0, "empty_thinking"),
        (THOUGHT + "no call at all", 0.0, "no_call"),
        (THOUGHT + RIGHT[:-3], 0.0, "unclosed_call"),
        ("<think>cut off", 0.0, "thinking_not_closed"),
    ],
)
def test_shaped_pays_form_and_calls_apart(text, reward, reason):
    verdict = judge_tool_calls(text, TRUTH, mode="shaped")
    assert (verdict.reward, verdict.reason) == (reward, reason)
    assert verdict.correct == (reward == 1.1)
    assert sum(verdict.parts.values()) == verdict.reward


def test_shaped_pays_the_form_of_a_refusal():
    assert judge_tool_calls(THOUGHT + "No tool fits.", [], mode="shaped").reward == 1.1
    assert judge_tool_calls(THOUGHT + RIGHT, [], mode="shaped").reward == 0.1
    assert judge_tool_calls("<think>on and on", [], mode="shaped").reward == 0.0


@pytest.mark.parametrize("text", [RIGHT, THOUGHT + RIGHT, "</think>" + RIGHT, "hm</think>" + RIGHT, "Sure.\n" + RIGHT])
def test_plain_passes_over_a_thought(text):
    assert judge_tool_calls(text, TRUTH, mode="plain").reward == 1.0


def test_a_thought_cut_off_is_no_refusal():
    assert judge_tool_calls("<think>on and on", [], mode="plain").reason == "thinking_not_closed"


@pytest.mark.parametrize("tag", ["<think>", "</think>", "<think></think>", "<tool_call>", "</tool_call>", "[f("])
def test_tags_inside_arguments_are_text(tag):
    text = "<tool_call>" + '{"name": "f", "arguments": {"a": "TAG"}}'.replace("TAG", tag) + "</tool_call>"
    truth = [{"name": "f", "arguments": {"a": tag}}]
    for response in (text, f"[f(a='{tag}')]", f"Well: {text} That is it."):
        assert judge_tool_calls(response, truth, mode="plain").correct
        assert judge_tool_calls(THOUGHT + response, truth).correct
    assert judge_tool_calls(text, text, mode="plain").correct


def test_a_draft_before_an_unopened_thought_s_end_is_no_answer():
    text = f"{WRONG}</think>{RIGHT}"
    assert judge_tool_calls(text, TRUTH, mode="plain").correct


def test_other_tags():
    text = f"[THINK]hm[/THINK]{RIGHT}"
    assert judge_tool_calls(text, TRUTH, tags=("[THINK]", "[/THINK]")).correct
    assert judge_tool_calls(text, TRUTH).reason == "no_thinking"


def test_an_unknown_mode_is_the_user_s_mistake():
    with pytest.raises(InputError, match="did you mean `shaped`"):
        judge_tool_calls(RIGHT, TRUTH, mode="shape")
