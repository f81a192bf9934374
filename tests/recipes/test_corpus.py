"""The corpus of egpo-tiny: what it promises about every example, and what the judges say to each habit."""

import json
import random
import re
from pathlib import Path

import pytest
import yaml

from egpo.rewards.sandbox import sandbox_status
from egpo.tasks import Problem
from examples.egpo_tiny import corpus, countdown
from examples.egpo_tiny.audit import judge_habits
from examples.egpo_tiny.corpus import draw_example, examples, write_corpus
from examples.egpo_tiny.lessons import LESSONS

BY_TASK = {lesson.task: lesson for lesson in LESSONS}
ALWAYS_RIGHT = {
    "countdown": set(),
    "gsm8k": {"worked", "at_once"},
    "function_calling": {"thinks, whole"},
    "code": {"right"},
}
SOMETIMES_RIGHT = {
    "countdown": {"persistent, exact", "hasty, exact"},
    "gsm8k": {"stops_early"},
    "function_calling": {"thinks, cuts_short"},
    "code": {"misread"},
}
needs_sandbox = pytest.mark.skipif(not sandbox_status().ok, reason="no sandbox works here")
JUDGES = [("countdown", 60), ("gsm8k", 60), ("function_calling", 60), pytest.param("code", 8, marks=needs_sandbox)]


def test_shares_are_shares():
    assert sum(lesson.share for lesson in LESSONS) == pytest.approx(1)
    for lesson in LESSONS:
        assert sum(lesson.habits.values()) == pytest.approx(1)


@pytest.mark.parametrize(("task", "count"), JUDGES)
def test_the_judge_pays_careful_habits_alone(task, count):
    judged = judge_habits(BY_TASK[task], count)
    assert all(one.failed_frac == 0 for one in judged)
    right = {one.habit: one.right_frac for one in judged}
    assert all(right[habit] == 1 for habit in ALWAYS_RIGHT[task])
    assert all(right[habit] < 1 for habit in SOMETIMES_RIGHT[task])
    assert all(right[habit] == 0 for habit in right.keys() - ALWAYS_RIGHT[task] - SOMETIMES_RIGHT[task])
    accuracy = sum(one.share * one.right_frac for one in judged)
    assert 0.2 < accuracy < 0.7, "a model of these habits would leave reinforcement nothing to do"


def test_without_thinking_the_same_calls_are_right_in_plain_mode():
    judged = {one.habit: one.right_frac for one in judge_habits(BY_TASK["function_calling"], 40, mode="plain")}
    assert judged["empty, whole"] == judged["thinks, whole"] == 1
    assert 0 < judged["empty, cuts_short"] < 1


def test_the_card_shows_the_settings():
    card = (Path(corpus.__file__).parent / "README.md").read_text()
    shown = yaml.safe_load(re.search(r"```yaml\n(.*?)```", card, re.DOTALL)[1])
    assert shown == {lesson.task: dict(lesson.settings) for lesson in LESSONS}


def test_no_example_is_of_an_unseen_problem():
    unseen = {
        lesson.task: {problem.key for split in lesson.unseen for problem in lesson.load().problems(split)}
        for lesson in LESSONS
    }
    assert all("test" in lesson.unseen for lesson in LESSONS)
    for example in examples(1500, seed=0):
        assert example.problem.key not in unseen[example.lesson.task]


def test_unseen_problems_would_be_drawn_were_they_not_kept_out():
    task, rng = BY_TASK["countdown"].load(), random.Random(0)
    tested = {problem.key for problem in task.problems("test")}
    assert sum(task.draw(rng).key in tested for _ in range(500)) > 10


def test_a_corpus_depends_on_its_seed_alone(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_corpus(tmp_path / name, 200, seed)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b != c
    lines = a.decode().splitlines()
    assert len(lines) == 200
    for line in lines:
        roles = [message["role"] for message in json.loads(line)["messages"]]
        assert roles[-2:] == ["user", "assistant"]


def countdown_thought(text):
    return re.search(r"<think>\n(.*)\n</think>", text, re.DOTALL)[1].split("\n")


def test_a_countdown_thought_is_true_and_never_tries_twice():
    rng = random.Random(0)
    for _ in range(300):
        example = draw_example(BY_TASK["countdown"], rng)
        truth = json.loads(example.problem.ground_truth)
        *failed, last = countdown_thought(example.response)
        assert len({*failed, last}) == len(failed) + 1
        for left, sign, right, value in re.findall(r"(\d+)([-+*/])(\d+)=(\d+)", "\n".join([*failed, last])):
            steps = {step.sign: step.value for step in countdown.joins(int(left), int(right))}
            assert steps[sign] == int(value)
        assert all(line.endswith(" no") for line in failed), "the thought ends where a try fits"
        for line in (*failed, last):
            assert line.endswith("yes") == (f"={truth['target']} " in line.rpartition(",")[2])
        if "persistent" in example.habit:
            assert last.endswith(" yes") or len(failed) + 1 == countdown.MOST_TRIES


def test_every_countdown_problem_has_a_try_that_fits():
    for problem in BY_TASK["countdown"].load().problems("test"):
        truth = json.loads(problem.ground_truth)
        assert any(attempt.value == truth["target"] for attempt in countdown.tries(**truth))


def test_equal_numbers_give_one_try_each():
    found = countdown.tries([2, 2, 2], 3)
    assert [str(attempt) for attempt in found] == ["2+2=4,4-2=2", "2*2=4,4-2=2", "2/2=1,2+1=3"]
    assert [attempt.expression for attempt in found] == ["(2+2)-2", "(2*2)-2", "2+(2/2)"]


def test_most_thoughts_stop_at_their_first_failure():
    """What reinforcement is to discover: greedy decoding, too, gives up where it should go on."""
    problem = Problem("k", (), json.dumps({"numbers": [7, 3, 11], "target": 40}))
    rng, lesson = random.Random(0), BY_TASK["countdown"]
    habits = rng.choices(list(lesson.habits), list(lesson.habits.values()), k=2000)
    thoughts = [countdown_thought(countdown.respond(problem, habit, rng)) for habit in habits]
    failed = [thought for thought in thoughts if thought[0].endswith(" no")]
    assert 500 < len(failed) < 2000
    assert 0.55 < sum(len(thought) == 1 for thought in failed) / len(failed) < 0.65
