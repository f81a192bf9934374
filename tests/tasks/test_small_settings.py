"""Settings that make a task small enough for a tiny model: the bounds hold, and the gold answers stay right."""

import json
import re

import pytest

from egpo.data.calls import parse_hermes
from egpo.data.tool_prompt import tools_in
from egpo.errors import InputError
from egpo.tasks import check_gold, load_task


@pytest.mark.parametrize("max_value", [20, 200])
def test_no_number_of_a_word_problem_is_over_the_bound(max_value):
    task = load_task("gsm8k", max_value=max_value, train=200, test=20)
    assert check_gold(task, "train", 200) == []
    for problem in task.problems("train"):
        numbers = re.findall(r"\d+", f"{problem.messages[-1]['content']} {task.gold(problem)}".replace(",", ""))
        assert max(map(int, numbers)) <= max_value


def test_a_small_conversation_is_one_request_for_one_call_between_two_tools():
    small = {"max_turns": 1, "max_calls": 1, "max_tools": 2, "describe_tools": False, "instruction": ""}
    task = load_task("function_calling", train=300, test=30, **small)
    assert check_gold(task, "train", 300) == []
    for problem in task.problems("train"):
        system, request = problem.messages
        assert request["role"] == "user"
        assert system["content"].startswith("# Tools")
        assert "description" not in system["content"]
        (call,) = parse_hermes(problem.ground_truth)
        offered = tools_in(system["content"])
        assert len(offered) == 2
        assert call.name in {tool["name"] for tool in offered}
        assert offered == json.loads(problem.extra["tools"])


def test_more_tools_than_there_are_is_all_of_them():
    task = load_task("function_calling", max_tools=1000, train=100, test=10)
    assert max(len(json.loads(problem.extra["tools"])) for problem in task.problems("train")) <= 12


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("gsm8k", {"max_value": 19}),
        ("gsm8k", {"max_value": "200"}),
        ("function_calling", {"max_turns": 0}),
        ("function_calling", {"max_calls": 0}),
        ("function_calling", {"max_tools": 1}),
    ],
)
def test_a_bound_that_leaves_nothing_to_draw_is_refused(name, setting):
    with pytest.raises(InputError, match=next(iter(setting))):
        load_task(name, **setting)
