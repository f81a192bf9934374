"""The corpus of egpo-tiny: what it promises about every example, and what the judges say to each habit."""

import json
import random
import re
from pathlib import Path

import pytest
import yaml

from egpo.rewards.sandbox import sandbox_status
from egpo.tasks import Problem
from egpo.tasks.episodes import TURN_BREAK
from examples.egpo_tiny import corpus, countdown
from examples.egpo_tiny.audit import judge_habits
from examples.egpo_tiny.corpus import draw_example, examples, write_corpus
from examples.egpo_tiny.lessons import FIRST, LESSONS, SECOND

BY_TASK = {lesson.name: lesson for lesson in LESSONS}
ALWAYS_RIGHT = {
    "countdown": set(),
    "gsm8k": {"worked", "at_once"},
    "function_calling": {"thinks, whole"},
    "code": {"right"},
    "toolbox": {"careful"},
    "toolbox_two": {"careful"},
}
SOMETIMES_RIGHT = {
    "countdown": {"persistent, exact", "hasty, exact"},
    "gsm8k": {"stops_early"},
    "function_calling": {"thinks, cuts_short"},
    "code": {"misread"},
    # A light may be on already, and a file unlocked by the wrong tool.
    "toolbox": {"hasty", "no_call", "other_tool", "unclosed"},
    "toolbox_two": {"hasty", "no_call", "other_tool", "unclosed"},
}
needs_sandbox = pytest.mark.skipif(not sandbox_status().ok, reason="no sandbox works here")
JUDGES = [
    ("countdown", 60),
    ("gsm8k", 60),
    ("function_calling", 60),
    ("toolbox", 60),
    ("toolbox_two", 60),
    pytest.param("code", 8, marks=needs_sandbox),
]


def test_shares_are_shares():
    assert sum(lesson.share for lesson in FIRST) == pytest.approx(1)
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
    assert shown == {lesson.name: dict(lesson.settings) for lesson in LESSONS}


def test_no_example_is_of_an_unseen_problem():
    unseen = {
        lesson.name: {problem.key for split in lesson.unseen for problem in lesson.load().problems(split)}
        for lesson in LESSONS
    }
    assert all("test" in lesson.unseen for lesson in LESSONS)
    for example in examples(1500, seed=0):
        assert example.problem.key not in unseen[example.lesson.name]


def test_no_request_of_an_episode_is_a_test_problem_of_its_own():
    """Whatever the size of the test split, and also in conversations of two requests."""
    for lesson in SECOND:
        rng, task = random.Random(0), lesson.load(test=512)
        tested = {problem.key for problem in BY_TASK["toolbox"].load(test=512).problems("test")}
        for _ in range(300):
            keys = list(lesson.keys(draw_example(lesson, rng).problem))
            assert len(keys) == {"toolbox": 2, "toolbox_two": 3}[lesson.name]
            assert not tested & set(keys)
            assert {task.split_of(key) for key in keys} == {"train"}


def test_the_key_of_a_request_is_that_of_the_problem_with_this_request_alone():
    rng, task = random.Random(0), BY_TASK["toolbox"].load()
    for _ in range(100):
        problem = task.draw(rng)
        assert set(BY_TASK["toolbox"].keys(problem)) == {problem.key}


def test_the_corpus_of_the_first_stage_has_no_episodes():
    assert {example.lesson.name for example in examples(300, seed=0, stage="first")} == {one.name for one in FIRST}
    assert {example.lesson.name for example in examples(300, seed=0)} == {one.name for one in LESSONS}


def test_most_episodes_end_after_their_first_call():
    """What reinforcement is to discover: greedy decoding, too, says "Done." where it should go on, and never asks."""
    rng, lesson = random.Random(0), BY_TASK["toolbox"]
    task, shortened, asked = lesson.load(), [], []
    for _ in range(1000):
        example = draw_example(lesson, rng)
        gold, texts = task.gold_turns(example.problem), example.response.split(TURN_BREAK)
        if "<tool_call>" not in gold[0]:
            asked.append(texts[0] == gold[0])
        elif texts[0] == gold[0] and len(gold) > 2:
            shortened.append(len(texts) == 2)
    assert min(len(asked), len(shortened)) > 100
    assert 0.5 < sum(shortened) / len(shortened) < 0.8
    assert 0.3 < sum(asked) / len(asked) < 0.5


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
        assert roles[-2] in ("user", "tool")
        assert roles[-1] == "assistant"


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
