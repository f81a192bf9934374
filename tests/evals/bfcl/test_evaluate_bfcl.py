"""Prompts that differ in one part are told apart by that part."""

import pytest

from egpo.evals.bfcl.evaluate_bfcl import as_question, mismatches
from egpo.tasks import load_task

BODY = """<|im_start|>system
{instruction}# Tools

<tools>
{tools}
</tools>

Return a json object.<|im_end|>
<|im_start|>user
{user}<|im_end|>
<|im_start|>assistant
{tag}"""
USUAL = {"instruction": "Be brief.\n\n", "tools": '{"name": "f"}', "user": "Do it.", "tag": "<think>\n"}


def prompt(**changed):
    return BODY.format(**(USUAL | changed))


def test_equal_prompts_have_no_mismatch():
    assert mismatches(prompt(), prompt(), "<think>") == []
    assert mismatches(prompt(), prompt(tag="<think>"), "<think>") == []


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"instruction": ""}, "instruction"),
        ({"instruction": "Think first.\n\n"}, "instruction"),
        ({"tools": '{"type": "function", "function": {"name": "f"}}'}, "tools"),
        ({"user": "Do that."}, "conversation"),
        ({"tag": ""}, "thinking tag"),
    ],
)
def test_each_part_is_named(changed, part):
    assert [found.part for found in mismatches(prompt(), prompt(**changed), "<think>")] == [part]


def test_a_thought_that_the_template_closes_is_told():
    found = mismatches(prompt(), prompt(tag="<think>\n\n</think>\n\n"), "<think>")
    assert [one.part for one in found] == ["conversation", "thinking tag"]


def test_a_prompt_without_tools_is_all_conversation():
    found = mismatches(prompt(), "<|im_start|>user\nDo it.<|im_end|>\n<|im_start|>assistant\n<think>", "<think>")
    assert {one.part for one in found} >= {"instruction", "tools"}


def test_a_training_problem_becomes_a_question():
    task = load_task("function_calling")
    question = as_question(task.problems("train")[0])
    assert question.messages[0]["role"] == "user"
    assert all("name" in tool and "function" not in tool for tool in question.tools)
    assert as_question(load_task("countdown").problems("train")[0]) is None
