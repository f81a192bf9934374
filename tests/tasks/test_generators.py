"""The generators: what they promise about every problem they draw."""

import itertools
import json
import random
import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.data import Dropped, ToolStyle
from egpo.data.calls import parse_hermes
from egpo.data.hardgen import convert_hardgen
from egpo.data.readers import Record
from egpo.tasks import load_task
from egpo.tasks.countdown import draw_expression, solve
from egpo.tasks.function_calling import draw_conversation
from egpo.tasks.gsm8k import STORIES, draw_word_problem
from egpo.tasks.mixed import KINDS
from egpo.tasks.program_problems import NUM_TESTS, TEMPLATES, _cases, draw_program_problem
from egpo.tasks.tool_catalogue import TOOLS

CONVERSATIONS = [draw_conversation(random.Random(seed)) for seed in range(1500)]


@given(numbers=st.lists(st.integers(1, 60), min_size=2, max_size=4), seed=st.integers(0, 999))
def test_a_drawn_expression_uses_each_number_once_and_is_found_by_the_search(numbers, seed):
    term = draw_expression(random.Random(seed), numbers, max_target=10**9)
    if term is None:
        return
    assert sorted(map(int, re.findall(r"\d+", term.text))) == sorted(numbers)
    assert term.value.denominator == 1
    assert term.value >= 1
    found = solve(numbers, int(term.value))
    assert found is not None
    assert sorted(map(int, re.findall(r"\d+", found.text))) == sorted(numbers)


def test_the_search_knows_fractions_and_the_unsolvable():
    assert solve([3, 3, 8, 8], 24).value == 24
    assert solve([1, 1], 24) is None


def test_every_template_with_every_parameter_gives_tests_that_a_constant_fails():
    for template in TEMPLATES:
        for values in itertools.product(*template.parameters.values()):
            parameters = dict(zip(template.parameters, values, strict=True))
            cases = _cases(random.Random(0), template, parameters)
            assert len(cases) == NUM_TESTS
            assert len({repr(output) for _, output in cases}) > 1


def test_there_are_dozens_of_templates_and_both_kinds_of_tests():
    assert len({template.solution for template in TEMPLATES}) == len(TEMPLATES) >= 30
    drawn = [draw_program_problem(random.Random(seed)) for seed in range(400)]
    kinds = Counter(next(iter(json.loads(problem.tests))) for problem in drawn)
    assert set(kinds) == {"assert", "inputs"}
    assert min(kinds.values()) > 100
    assert len({problem.name.partition("(")[0] for problem in drawn}) == len(TEMPLATES)


def test_a_statement_names_its_parameters():
    for seed in range(100):
        problem = draw_program_problem(random.Random(seed))
        for value in re.findall(r"=([^,)]+)", problem.name):
            assert value in problem.statement


def test_word_problems_show_right_arithmetic():
    for seed in range(300):
        story = draw_word_problem(random.Random(seed))
        steps = re.findall(r"<<(\d+)([-+*])(\d+)=(\d+)>>", story.answer)
        for left, sign, right, value in steps:
            a, b = int(left), int(right)
            assert {"+": a + b, "-": a - b, "*": a * b}[sign] == int(value)
        assert story.answer.endswith(f"#### {int(steps[-1][3]):,}")
    assert len(STORIES) >= 8


def test_math_problems_vary():
    questions = {kind(random.Random(seed)).question for kind in KINDS for seed in range(20)}
    assert len(questions) > 120


def json_kinds(value):
    yield type(value).__name__
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from json_kinds(inner)


def test_conversations_have_all_that_the_real_file_has():
    kinds, most_calls, no_call_turns, offered_beyond_used, turns = Counter(), 0, 0, 0, Counter()
    for record in CONVERSATIONS:
        row = convert_hardgen(Record(record, "x"), 0, ToolStyle())
        if isinstance(row, Dropped):
            turns[row.reason] += 1
            continue
        calls = parse_hermes(row.ground_truth)
        for call in calls:
            kinds.update(itertools.chain.from_iterable(map(json_kinds, call.arguments.values())))
        most_calls = max(most_calls, len(calls))
        replies = [message for message in row.prompt if message["role"] == "assistant"]
        no_call_turns += any("<tool_call>" not in reply["content"] for reply in replies)
        turns["tool results"] += any("<tool_response>" in message["content"] for message in row.prompt)
        offered_beyond_used += len(json.loads(row.extra["tools"])) > len({call.name for call in calls})
        assert "<think>" in row.extra["answer"]
        assert "</think>" not in "".join(message["content"] for message in row.prompt[1:])
    assert set(kinds) == {"str", "int", "float", "bool", "NoneType", "list", "dict"}
    assert most_calls == 3
    assert min(no_call_turns, offered_beyond_used, turns["tool results"], turns["no_call"]) > 20
    assert set(turns) == {"tool results", "no_call"}


def test_every_request_holds_the_values_that_its_calls_need():
    for record in CONVERSATIONS[:300]:
        row = convert_hardgen(Record(record, "x"), 0, ToolStyle())
        if isinstance(row, Dropped):
            continue
        request = row.prompt[-1]["content"]
        for call in parse_hermes(row.ground_truth):
            for name, value in call.arguments.items():
                assert f"{name}: {json.dumps(value, ensure_ascii=False)}" in request


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_drawn_arguments_fit_the_schema(tool):
    from jsonschema import Draft202012Validator

    schema = tool.schema()["parameters"]
    Draft202012Validator.check_schema(schema)
    rng = random.Random(0)
    for _ in range(50):
        Draft202012Validator(schema).validate({argument.name: argument.draw(rng) for argument in tool.arguments})


def asked(problem):
    return problem.messages[-1]["content"], problem.ground_truth


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_request_of_a_test_conversation_is_in_training_with_its_calls(seed):
    task = load_task("function_calling", train=900, test=50, seed=seed)
    tested, trained = ({asked(problem) for problem in task.problems(split)} for split in ("test", "train"))
    assert len(tested) == 50
    assert not tested & trained


def test_converted_conversations_are_told_apart_by_their_whole_prompt():
    task = load_task("function_calling")
    (one, other) = (convert_hardgen(Record(before_a_request(word), "x"), 0, ToolStyle()) for word in ("a", "b"))
    assert asked(task.problem_of(one)) == asked(task.problem_of(other))
    assert task.key(one) != task.key(other)
    assert task.key(replace(one, extra={})) == task.key(replace(other, extra={}))


def before_a_request(word):
    system = {"role": "system", "tools": json.dumps([TOOLS[0].schema()])}
    turns = [system, {"role": "user", "content": word}, {"role": "user", "content": "q"}]
    return {str(n): turn for n, turn in enumerate([*turns, {"role": "assistant", "content": "[f(a=1)]"}])}
