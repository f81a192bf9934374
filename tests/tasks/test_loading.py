"""Tasks by name, from the table and from outside; every mistake has its own message."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from egpo.errors import InputError
from egpo.tasks import Problem, check_gold, load_task
from egpo.tasks.countdown import Countdown

EXAMPLES = Path(__file__).parents[2] / "examples"

MODULE = """
from egpo.tasks import Problem
from egpo.rewards.verdict import Verdict

class Whole:
    def __init__(self, size=2):
        self.size = size
    def problems(self, split):
        return [Problem(str(i), (), str(i)) for i in range(self.size)]
    def prompt(self, problem):
        return [{"role": "user", "content": problem.key}]
    def judge(self, problem, text):
        return Verdict(float(text == problem.ground_truth), text == problem.ground_truth, "correct")
    def gold(self, problem):
        return problem.ground_truth

class Wrong(Whole):
    def gold(self, problem):
        return "7"

class Anything:
    def __init__(self, **settings):
        self.size = settings["width"]
    problems, prompt, judge, gold = Whole.problems, Whole.prompt, Whole.judge, Whole.gold

class Bare:
    problems, prompt, judge, gold = Whole.problems, Whole.prompt, Whole.judge, Whole.gold

class Half:
    def problems(self, split): ...
    def prompt(self, problem): ...

a_function = print
"""


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A module in the current directory, forgotten afterwards."""
    (tmp_path / "some_tasks.py").write_text(MODULE)
    (tmp_path / "broken_task.py").write_text("1 / 0")
    (tmp_path / "leaving_task.py").write_text("raise SystemExit(3)")
    (tmp_path / "needy_task.py").write_text("import not_installed_anywhere")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield
    for name in ("some_tasks", "broken_task", "leaving_task", "needy_task"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("outside")
def test_a_task_from_the_current_directory():
    task = load_task("some_tasks:Whole", size=3)
    assert len(task.problems("train")) == 3
    assert check_gold(task) == []


@pytest.mark.usefixtures("outside")
def test_a_constructor_that_takes_any_setting_gets_any():
    assert len(load_task("some_tasks:Anything", width=5).problems("train")) == 5


@pytest.mark.usefixtures("outside")
def test_the_self_check_names_what_is_wrong():
    (fault, _) = check_gold(load_task("some_tasks:Wrong"))
    assert "problem 0: the gold answer is judged not correct: `correct` (reward 0.0)" in str(fault)


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("some_taks:Whole", "no module `some_taks`"),
        ("some_tasks.deeper:Whole", "no module `some_tasks.deeper`"),
        ("some_tasks:Hole", "no class `Hole`; did you mean `Whole`"),
        ("some_tasks:a_function", "no class `a_function`"),
        ("some_tasks:", "no class ``"),
        ("some_tasks:Half", "`Half` has no method `judge`, `gold`"),
        ("broken_task:X", "importing `broken_task` failed .ZeroDivisionError"),
        ("needy_task:X", "imports `not_installed_anywhere`, which is not installed"),
        ("leaving_task:X", "importing `leaving_task` failed .SystemExit: 3"),
        (":X", "importing `` failed"),
        ("countdwn", "unknown task `countdwn`; did you mean `countdown`"),
        ("", "unknown task ``"),
    ],
)
def test_every_mistake_in_a_name(name, message):
    with pytest.raises(InputError, match=message):
        load_task(name)


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("countdown", {"max_numbr": 3}, "unknown setting `max_numbr`; did you mean `max_number`"),
        ("countdown", {"sed": 3}, "unknown setting `sed`; did you mean `seed`"),
        ("countdown", {"mode": "binry"}, "mode='binry' is not allowed; did you mean `binary`"),
        ("countdown", {"min_numbers": 5}, "2 <= min_numbers <= max_numbers"),
        ("countdown", {"train": 0}, "train=0"),
        ("countdown", {"prompt_format": "{number}"}, "prompt_format"),
        ("countdown", {"prompt_format": "{numbers.x}"}, "prompt_format"),
        ("countdown", {"prompt_format": "{numbers[x]}"}, "prompt_format"),
        ("countdown", {"prompt_format": 3}, "prompt_format"),
        ("countdown", {"max_numbers": "4"}, "max_numbers='4' is not a whole number; give"),
        ("countdown", {"max_number": 1.5}, "max_number=1.5 is not a whole number; give"),
        ("countdown", {"max_target": True}, "max_target=True is not a whole number; give"),
        ("countdown", {"min_numbers": None}, "min_numbers=None is not a whole number; give a whole number"),
        ("countdown", {"mode": 3}, "mode=3"),
        ("gsm8k", {"train": "4"}, "train='4' is not a whole number; give"),
        ("gsm8k", {"seed": "4"}, "seed='4' is not a whole number; give"),
        ("gsm8k", {"source": 3}, "source=3 is not a path; give the path"),
        ("gsm8k", {"mode": "strict"}, "mode='strict'"),
        ("function_calling", {"mode": "think"}, "mode='think'"),
        ("code", {"sandbox": "limit"}, "limit"),
        ("code", {"mode": "x"}, "mode='x'"),
        ("some_tasks:Whole", {"siz": 3}, "unknown setting `siz`; did you mean `size`"),
        ("some_tasks:Half", {"siz": 3}, "has no method `judge`"),
        ("some_tasks:Bare", {"siz": 3}, "unknown setting `siz`; the task takes no settings"),
    ],
)
def test_every_mistake_in_a_setting(name, settings, message):
    with pytest.raises(InputError, match=message):
        load_task(name, **settings)


def test_a_dash_is_an_underscore():
    assert type(load_task("function-calling")) is type(load_task("function_calling"))


def test_an_unknown_split_and_a_missing_directory(tmp_path):
    with pytest.raises(InputError, match=r"unknown split `tset`; did you mean `test`"):
        load_task("countdown").problems("tset")
    with pytest.raises(InputError, match=r"train.parquet: no such file.*egpo prepare"):
        load_task("countdown", source=tmp_path).problems("train")


def test_a_generator_that_has_no_more_says_so():
    task = Countdown(min_numbers=2, max_numbers=2, max_number=3, max_target=4, train=1000, test=1)
    with pytest.raises(InputError, match=r"only about .* different problems"):
        task.problems("train")


def test_a_countdown_without_a_stored_solution_is_solved_or_refused():
    task = load_task("countdown")
    problem = Problem("k", (), '{"numbers": [3, 3, 8, 8], "target": 24}')
    assert task.judge(problem, task.gold(problem)).correct
    with pytest.raises(InputError, match="has no solution"):
        task.gold(Problem("k", (), '{"numbers": [1, 1], "target": 24}'))


def test_the_example_of_the_documentation_works_from_its_own_folder():
    code = (
        "from egpo.tasks import check_gold, load_task\n"
        "task = load_task('my_task:SortWords', size=20)\n"
        "assert check_gold(task) == [] == check_gold(task, 'test')\n"
        "problem = task.problems('train')[0]\n"
        "assert not task.judge(problem, task.gold(problem)[::-1]).correct\n"
        "words = {s: [' '.join(sorted(task.prompt(p)[0]['content'].split()[-5:])) for p in task.problems(s)]\n"
        "         for s in ('train', 'test')}\n"
        "assert len(words['train']) == len(words['test']) == 20\n"
        "assert not set(words['train']) & set(words['test'])\n"
        "assert words['train'] == [p.key for p in task.problems('train')]\n"
        "assert task.prompt(problem)[0]['content'].split()[-5:] != problem.key.split()\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=EXAMPLES, check=True)


def test_the_walk_through_shows_the_example_as_it_is():
    shown = (EXAMPLES.parent / "docs" / "tasks.md").read_text()
    source = (EXAMPLES / "my_task.py").read_text()
    assert source.strip() in shown
    assert len(source.splitlines()) <= 45


FAILING = """
import json
from egpo.rewards.verdict import Verdict
from egpo.tasks import Problem

class Fails:
    def __init__(self, where=""):
        self.where = where
        self._fail("__init__")
    def _fail(self, method):
        if self.where == method:
            json.loads("{")
        if self.where == "exit in " + method:
            raise SystemExit(0)
    def problems(self, split):
        self._fail("problems")
        return [Problem("p", ({"role": "user", "content": "?"},), "1")]
    def prompt(self, problem):
        self._fail("prompt")
        return list(problem.messages)
    def gold(self, problem):
        self._fail("gold")
        return "1"
    def judge(self, problem, text):
        return Verdict(1.0, True, "right")
"""


def used(task):
    (problem,) = task.problems("train")
    task.prompt(problem)
    task.gold(problem)
    return task


@pytest.fixture
def failing(tmp_path, monkeypatch):
    (tmp_path / "failing.py").write_text(FAILING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "failing", raising=False)
    return lambda where: used(load_task("failing:Fails", where=where))


@pytest.mark.parametrize("method", ["__init__", "problems", "prompt", "gold"])
def test_a_task_that_raises_is_named_with_its_line(failing, method):
    """It was a traceback of dozens of lines through the engine."""
    with pytest.raises(
        InputError,
        match=rf"^task failing:Fails: the task's `{method}` raised JSONDecodeError: .* \(failing\.py, line 12\);",
    ):
        failing(method)
    with pytest.raises(InputError, match=rf"the task's `{method}` raised SystemExit: 0 "):
        failing(f"exit in {method}")


def test_a_task_from_outside_stays_what_it_is(failing):
    """Its name, its attributes, and that worker processes of its own can be sent it."""
    task = failing("nowhere")
    assert (type(task).__name__, type(task).__module__, task.where) == ("Fails", "failing", "nowhere")
    again = pickle.loads(pickle.dumps(task))
    assert isinstance(task, type(again))
    assert again.where == "nowhere"


def test_a_subclass_of_a_task_of_ours_is_one_of_ours():
    task = load_task("egpo.tasks.countdown:Countdown", train=2, test=1)
    assert isinstance(task, Countdown)
    assert len(task.problems("train")) == 2
