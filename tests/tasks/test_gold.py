"""Every task's gold answer earns full reward, and a perturbed one does not."""

import json
import re

import pytest

from egpo.data.calls import hermes_text, parse_hermes
from egpo.rewards.sandbox import sandbox_status
from egpo.tasks import TASKS, Problem, Task, check_gold, load_task

TEXT_TASKS = [
    ("countdown", {}),
    ("countdown", {"mode": "binary", "max_number": 12, "max_target": 60, "max_numbers": 3, "train": 300, "test": 50}),
    ("gsm8k", {}),
    ("gsm8k", {"mode": "shaped"}),
    ("function_calling", {"train": 200, "test": 50}),
    ("function_calling", {"mode": "plain", "train": 200, "test": 50}),
    ("function_calling", {"mode": "shaped", "train": 200, "test": 50}),
]

needs_sandbox = pytest.mark.skipif(not sandbox_status().ok, reason="no sandbox works here")


@pytest.mark.parametrize(("name", "settings"), TEXT_TASKS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_gold_of_a_text_task_earns_full_reward(name, settings, split):
    task = load_task(name, **settings)
    assert isinstance(task, Task)
    assert check_gold(task, split, 300) == []
    rewards = {task.judge(p, task.gold(p)).reward for p in task.problems(split)[:50]}
    assert rewards in ({1.0}, {1.1})


@needs_sandbox
@pytest.mark.parametrize(("name", "count"), [("code", 40), ("mixed", 48)])
def test_gold_of_a_code_task_earns_full_reward(name, count):
    assert check_gold(load_task(name), "train", count) == []


def perturb_expression(gold, problem):
    target = json.loads(problem.ground_truth)["target"]
    yield re.sub(r"<answer>(.*)</answer>", r"<answer>\1 + 1</answer>", gold)
    yield re.sub(r"<answer>.*</answer>", f"<answer>{target}</answer>", gold)
    yield gold.replace("</answer>", "").replace("<answer>", "")


def perturb_number(gold, problem):
    yield f"{gold}1"
    yield gold.replace("#### ", "#### -")
    yield gold.rpartition("####")[0]


def perturb_calls(gold, problem):
    head, tag, tail = gold.partition("<tool_call>")
    calls = parse_hermes(tag + tail)
    yield head + hermes_text(calls[1:])
    yield head + hermes_text([*calls, calls[0]])
    yield gold.replace('{"name": "', '{"name": "x', 1)
    yield gold.replace('"arguments": {', '"arguments": {"unasked": 1' + (", " if calls[0].arguments else ""), 1)
    for key in calls[0].arguments:
        less = {k: v for k, v in calls[0].arguments.items() if k != key}
        yield head + hermes_text([type(calls[0])(calls[0].name, less), *calls[1:]])
        other = {**calls[0].arguments, key: ["something else"]}
        yield head + hermes_text([type(calls[0])(calls[0].name, other), *calls[1:]])


@pytest.mark.parametrize(
    ("name", "perturb"),
    [("countdown", perturb_expression), ("gsm8k", perturb_number), ("function_calling", perturb_calls)],
)
def test_a_perturbed_gold_is_wrong(name, perturb):
    task = load_task(name, train=100, test=10)
    for problem in task.problems("train"):
        for text in perturb(task.gold(problem), problem):
            verdict = task.judge(problem, text)
            assert not verdict.correct, (problem.key, text)
            assert not verdict.failed
            assert verdict.reward < task.judge(problem, task.gold(problem)).reward


@pytest.mark.parametrize("mode", ["strict_think", "plain", "shaped"])
def test_a_problem_that_needs_no_call_is_right_without_one_and_wrong_with_one(mode):
    task = load_task("function_calling", mode=mode)
    problem = Problem("k", (), "", extra={"tools": '[{"name": "f"}]', "answer": "I cannot."})
    assert task.judge(problem, task.gold(problem)).correct
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert not task.judge(problem, task.gold(problem).replace("I cannot.", call)).correct


@needs_sandbox
def test_a_perturbed_program_is_wrong():
    """Each template's program, with its result spoilt, fails its own tests."""
    task = load_task("code", train=40, test=1)
    for problem in task.problems("train"):
        gold = task.gold(problem)
        mark = "answer = " if "answer = " in gold else "    return "
        head, _, tail = gold.rpartition(mark)
        spoilt = f"{head}{mark}'x' and not {tail}"
        verdict = task.judge(problem, spoilt)
        assert not verdict.correct, problem.key
        assert not verdict.failed, verdict


@needs_sandbox
def test_a_mixed_row_is_judged_by_its_ability():
    task = load_task("mixed")
    of = {problem.ability: problem for problem in task.problems("train")}
    assert set(of) == {"math", "code"}
    for problem, other in ((of["math"], of["code"]), (of["code"], of["math"])):
        assert task.judge(problem, task.gold(problem)).correct
        assert not task.judge(problem, task.gold(other)).correct
    wrong = task.gold(of["math"]).replace("\\boxed{", "\\boxed{1+")
    assert not task.judge(of["math"], wrong).correct


def test_the_table_names_every_task_and_each_generates_disjoint_splits():
    assert set(TASKS) == {"countdown", "gsm8k", "function_calling", "code", "mixed"}
    for name in TASKS:
        task = load_task(name, train=60, test=30)
        keys = {split: [problem.key for problem in task.problems(split)] for split in ("train", "test")}
        assert (len(set(keys["train"])), len(set(keys["test"]))) == (60, 30)
        assert not set(keys["train"]) & set(keys["test"])


@pytest.mark.parametrize("name", sorted(TASKS))
def test_problems_depend_on_the_seed_alone_and_the_test_split_not_on_the_size_of_the_other(name):
    first = load_task(name, train=20, test=10, seed=5)
    assert list(first.problems("train")) == list(load_task(name, train=20, test=10, seed=5).problems("train"))
    assert list(first.problems("test")) == list(load_task(name, train=40, test=10, seed=5).problems("test"))
    assert list(first.problems("test")) != list(load_task(name, train=20, test=10, seed=6).problems("test"))


def test_a_prompt_is_a_copy():
    task = load_task("gsm8k", train=5, test=5)
    problem = task.problems("train")[0]
    task.prompt(problem)[0]["content"] = "spoilt"
    assert task.prompt(problem)[0]["content"].endswith('"####".')
