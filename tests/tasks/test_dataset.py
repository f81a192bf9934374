"""The task `dataset`: rows from anywhere, templates, splits, rewards of every form, and one line for every mistake."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import egpo
from egpo import errors
from egpo.errors import EgpoError, EgpoWarning, InputError
from egpo.rewards.verdict import Verdict
from egpo.tasks import Dataset, check_gold, load_task
from egpo.tasks.protocol import JUDGE_RAISED, Problem, judge_texts

ROOT = Path(__file__).parents[2]
ROWS = [{"a": a, "b": b, "sum": a + b, "note": f"row {a}{b}"} for a in range(5) for b in range(4)]
PROMPT = "What is {a} + {b}?"
SMALL = {
    "model": {"path": "egpo-tiny"},
    "rollout": {"prompts": 2, "n": 2, "max_response_tokens": 8},
    "validation.every": 0,
    "steps": 1,
}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    errors.forget_warnings()


def write_lines(name, rows):
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def exact(text, sum):
    return float(text.strip() == str(sum))


def made(rows=ROWS, **settings):
    return Dataset(rows, **{"prompt": PROMPT, "reward": exact, **settings})


def judged(task, texts, split="train"):
    problems = task.problems(split)[: len(texts)]
    return judge_texts(task, problems, texts)


# Sources


def parquet(name):
    pq.write_table(pa.Table.from_pylist(ROWS), name)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("rows.jsonl", lambda name: write_lines(name, ROWS)),
        ("rows.json", lambda name: Path(name).write_text(json.dumps(ROWS))),
        ("rows.parquet", parquet),
    ],
)
def test_a_file_gives_the_problems_of_its_rows(name, write):
    write(name)
    task = load_task("dataset", source=name, prompt=PROMPT, reward="math", answer="sum")
    problems = task.problems("train")
    assert [p.messages[-1]["content"] for p in problems] == [f"What is {r['a']} + {r['b']}?" for r in ROWS]
    assert [p.ground_truth for p in problems] == [str(r["sum"]) for r in ROWS]
    assert [p.key for p in problems] == [p.key for p in made().problems("train")]


def test_rows_come_as_a_data_frame_too():
    pandas = pytest.importorskip("pandas")
    assert [p.key for p in made(pandas.DataFrame(ROWS)).problems("train")] == [p.key for p in made().problems("train")]


def test_a_folder_has_a_file_for_each_split():
    Path("data").mkdir()
    write_lines("data/train.jsonl", ROWS[:15])
    write_lines("data/test.jsonl", ROWS[15:])
    task = made("data")
    assert (len(task.problems("train")), len(task.problems("test"))) == (15, 5)
    with pytest.raises(InputError, match="`test` is set, and the folder data has a test file"):
        made("data", test=0.5)


def test_a_dataset_on_the_hub_with_its_splits(monkeypatch):
    """`datasets` takes a folder `owner/name` under the current one for the set of that name: no network is needed.

    With a configuration after it, the name is not that of a folder, which the task would read itself.
    """
    monkeypatch.setenv("HF_DATASETS_CACHE", str(Path.cwd() / "cache"))
    Path("acme/sums").mkdir(parents=True)
    write_lines("acme/sums/train.jsonl", ROWS[:15])
    write_lines("acme/sums/test.jsonl", ROWS[15:])
    task = made("acme/sums:default", test="test")
    assert (len(task.problems("train")), len(task.problems("test"))) == (15, 5)
    assert len(made("acme/sums:default", split="test").problems("train")) == 5
    with pytest.raises(InputError, match=r"Bad split: dev. Available splits: \['train', 'test'\]"):
        made("acme/sums:default", test="dev").problems("test")


def test_messages_of_a_column_and_the_system_prompt():
    asked = [[{"role": "user", "content": f"{i}?"}] for i in range(3)]
    own = [[{"role": "system", "content": "own"}, {"role": "user", "content": "3?"}]]
    rows = [{"chat": messages} for messages in asked + own]
    task = Dataset(rows, messages="chat", system="Be brief.", reward=lambda text: 1.0)
    assert [task.prompt(p)[0]["content"] for p in task.problems("train")] == ["Be brief."] * 3 + ["own"]


@pytest.mark.parametrize("prompt", ["Say hello.", [{"role": "user", "content": "Say hello."}]])
def test_the_column_prompt_is_used_if_nothing_is_said_about_prompts(prompt):
    (problem,) = Dataset([{"prompt": prompt}], reward=lambda text: 1.0).problems("train")
    assert problem.messages == ({"role": "user", "content": "Say hello."},)


def test_fields_of_columns_have_dotted_names():
    rows = [{"prompt": "1 + 1?", "reward_model": {"ground_truth": "2"}}]
    task = Dataset(rows, reward="math", answer="reward_model.ground_truth")
    assert judged(task, [r"\boxed{2}"])[0].correct


# Splits


@pytest.mark.parametrize(("test", "size"), [(0.25, 5), (0.01, 1), (7, 7)])
def test_held_out_rows_depend_on_seed_and_prompt_alone(test, size):
    task = made(test=test)
    keys = {split: {p.key for p in task.problems(split)} for split in ("train", "test")}
    assert len(keys["test"]) == size
    assert not keys["train"] & keys["test"]
    assert len(keys["train"] | keys["test"]) == len(ROWS)
    assert {p.key for p in made(ROWS[::-1], test=test).problems("test")} == keys["test"]
    others = [{p.key for p in made(test=test, seed=seed).problems("test")} for seed in range(1, 5)]
    assert any(other != keys["test"] for other in others)


def test_a_problem_of_the_test_file_is_not_trained_on():
    write_lines("test.jsonl", ROWS[:3])
    with pytest.warns(EgpoWarning, match="3 training problems are also test problems"):
        train = made(test="test.jsonl").problems("train")
    assert len(train) == len(ROWS) - 3


def test_repeated_rows_are_left_out_and_counted():
    rows = [*ROWS, ROWS[0], {**ROWS[1], "sum": 99}]
    with pytest.warns(EgpoWarning, match="2 of 22 rows of the split `train` repeat .*; 1 of them differ"):
        assert len(made(rows).problems("train")) == len(ROWS)


def test_a_template_without_a_column_warns_and_tells_rows_apart_by_their_columns():
    with pytest.warns(EgpoWarning, match="names no column, so that all prompts are equal"):
        splits = [made(prompt="Guess.", test=4).problems(split) for split in ("train", "test")]
    assert [len(split) for split in splits] == [16, 4]


def test_the_first_training_problems():
    assert len(made(train=3, test=4).problems("train")) == 3


# Rewards


def test_a_function_of_one_response_takes_what_it_names():
    seen = {}

    def reward(text, ground_truth, extra_info, problem, b):
        seen.update(text=text, ground_truth=ground_truth, extra_info=extra_info, problem=problem, b=b)
        return Verdict(0.5, True, "half")

    task = made(reward=reward, answer="sum")
    assert judged(task, ["hm"]) == (Verdict(0.5, True, "half"),)
    assert seen == {
        "text": "hm",
        "ground_truth": 0,
        "extra_info": ROWS[0],
        "problem": task.problems("train")[0],
        "b": 0,
    }


def test_trls_form_is_called_once_for_all_responses():
    calls = []

    def reward(prompts, completions, **columns):
        calls.append((prompts, completions, columns))
        return [float(text == str(total)) for text, total in zip(completions, columns["sum"], strict=True)]

    verdicts = judged(made(reward=reward), ["0", "7", "2"])
    assert [v.reward for v in verdicts] == [1.0, 0.0, 1.0]
    ((prompts, completions, columns),) = calls
    assert prompts == ["What is 0 + 0?", "What is 0 + 1?", "What is 0 + 2?"]
    assert completions == ["0", "7", "2"]
    assert columns == {name: [row[name] for row in ROWS[:3]] for name in ROWS[0]}


def test_trls_form_gets_messages_for_prompts_that_are_messages():
    chat = [{"role": "user", "content": "?"}]

    def reward(prompts, completions):
        assert prompts == [chat]
        return [len(completion[-1]["content"]) for completion in completions]

    task = Dataset([{"prompt": chat}], reward=reward)
    assert judged(task, ["four"])[0].reward == 4.0


def test_verls_form_and_our_own_trl_reward():
    def verls(data_source, solution_str, ground_truth, extra_info=None):
        return {"score": 0.25, "acc": 1.0, "reason": data_source}

    assert judged(made(reward=verls, answer="sum"), ["x"]) == (Verdict(0.25, True, "dataset"),)
    task = made(reward=egpo.trl_reward("math"), answer="sum")
    assert [v.correct for v in judged(task, [r"\boxed{0}", r"\boxed{7}"])] == [True, False]


def test_a_built_in_reward_judges_by_the_answer_column():
    task = made(reward="gsm8k@shaped", answer="sum")
    assert (task.data_source, judged(task, ["#### 0"])[0].reason) == ("gsm8k", "correct")
    assert not judged(task, ["#### 5"])[0].correct


def test_the_reward_from_which_a_response_is_correct():
    assert not judged(made(reward=lambda text: 0.8), ["x"])[0].correct
    assert judged(made(reward=lambda text: 0.8, full_reward=0.8), ["x"])[0].correct


def test_gold_is_a_template_and_its_absence_is_said():
    assert check_gold(made(gold="{sum}")) == []
    with pytest.raises(InputError, match="the dataset has no gold answers; set `gold`"):
        check_gold(made())


def many(values):
    return lambda completions: values(completions)


NO_SCORES = [None, float("nan"), float("inf")]


@pytest.mark.parametrize("nothing", NO_SCORES)
def test_a_response_without_a_reward_is_failed_and_not_wrong(nothing):
    batched = made(reward=many(lambda texts: [nothing if text == "odd" else 1.0 for text in texts]))
    single = made(reward=lambda text: nothing if text == "odd" else 1.0)
    for task in (batched, single):
        errors.forget_warnings()
        with pytest.warns(EgpoWarning, match="such responses are left out, and count as failed"):
            verdicts = judged(task, ["even", "odd"])
        assert [(v.reward, v.failed) for v in verdicts] == [(1.0, False), (0.0, True)]


def fails(text):
    if text == "odd":
        raise KeyError("no such thing")
    return 1.0


def test_a_response_on_which_the_function_raises_is_failed_and_the_others_are_judged():
    for reward in (fails, many(lambda texts: [fails(text) for text in texts])):
        errors.forget_warnings()
        with pytest.warns(EgpoWarning, match=r"raised KeyError: 'no such thing' \(test_dataset.py, line \d+\)"):
            verdicts = judged(made(reward=reward), ["even", "odd"])
        assert [(v.reward, v.reason) for v in verdicts] == [(1.0, "scored"), (0.0, "reward_raised")]


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (fails, r"failed on all 2 responses: reward_raised .*KeyError: 'no such thing' \(test_dataset.py"),
        (many(lambda texts: [fails(text) for text in texts]), "raised KeyError: 'no such thing'"),
        (lambda text: None, "failed on all 2 responses: no_score"),
        (many(lambda texts: [None] * len(texts)), "gave no reward for any of 2 responses"),
        (lambda text: "good", "the function returned 'good', which is not a reward; return a number"),
        (
            many(lambda texts: ["good"] * len(texts)),
            "the function returned 'good', which is not a reward; return a number",
        ),
        (many(lambda texts: [1.0]), "returned 1 values for 2 completions; return one number for each completion"),
        (many(lambda texts: 1.0), "returned float, not a list"),
        (many(lambda texts: "ab"), "returned str, not a list"),
    ],
)
def test_a_function_that_gives_no_numbers_is_the_users_mistake(reward, message):
    with pytest.raises(InputError, match=message) as caught:
        judged(made(reward=reward), ["odd", "odd"])
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


async def later(text):
    return 1.0


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (lambda response: 1.0, r"parameters \(response\) do not tell how to call it; take `completions`"),
        (lambda: 1.0, r"parameters \(none\) do not tell"),
        (lambda **text: 1.0, "do not tell how to call it"),
        (lambda completions, text: [], "takes both `completions` and `text`, so that its form is ambiguous"),
        (lambda text, /: 1.0, "`text` cannot be given by name"),
        (lambda text, notes: 1.0, "requires `notes`, which is not a column of the data; did you mean `note`"),
        (lambda completions, completion_ids: [], "requires `completion_ids`, which is not a column"),
        (lambda text, ground_truth: 1.0, "requires `ground_truth`.*set the task's `answer`"),
        (later, "is asynchronous"),
        (Verdict, "this is a class, not a function"),
        (3, "reward=3 is neither a name nor a function"),
        (None, "no reward is given; set `reward` to file.py:function"),
        ("mth", "unknown reward `mth`; did you mean `math`"),
        ("reward.py", "name a function, as in reward.py:reward"),
        ("math", "the reward `math` needs a ground truth; set `answer`"),
        ("there_is_none.py:f", "there is no file `there_is_none.py`"),
        ("mine.py:exakt", "`mine.py` has no function `exakt`; did you mean `exact`"),
        ("broken.py:f", r"importing `broken.py` failed \(ZeroDivisionError"),
        ("no_such_module:f", "there is no module `no_such_module`"),
    ],
)
def test_a_reward_that_cannot_be_called(reward, message):
    Path("mine.py").write_text("def exact(text):\n    return 1.0\n")
    Path("broken.py").write_text("1 / 0")
    with pytest.raises(InputError, match=message) as caught:
        made(reward=reward).problems("train")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt": "What is {c}?"}, "`source`, row 0: the row has no column `c`; choose from"),
        ({"prompt": "What is {a?"}, r"prompt: the template has a single brace \(.*write {{ and }}"),
        ({"prompt": "a } b"}, "single brace"),
        ({"prompt": "{}"}, "`{}` is not a column's name in braces"),
        ({"prompt": "{a:>3}"}, "`{a:>3}` is not a column's name in braces; write {column} without a format"),
        ({"prompt": "{a!r}"}, "`{a!r}` is not a column's name"),
        ({"prompt": ""}, "is not a template"),
        ({"prompt": 3}, "prompt=3 is not a template"),
        ({"prompt": None}, r"no prompt is given \(the columns are a, b, sum, note\)"),
        ({"messages": "note"}, "`prompt` and `messages` are both set"),
        ({"prompt": None, "messages": "note"}, "the column `note` is not a list of {role, content} messages"),
        ({"answer": "total"}, "the row has no column `total`"),
        ({"system": 3}, "system=3 is not a text"),
        ({"test": 20}, "test=20 leaves none of 20 different problems for training"),
        ({"test": 0}, "test=0 is not allowed; give a fraction"),
        ({"test": 1.5}, "test=1.5 is not allowed"),
        ({"test": True}, "test=True is not allowed"),
        ({"test": "none.jsonl"}, "none.jsonl: no such file"),
        ({"test": ROWS}, "every training problem is also a test problem"),
        ({"train": 0}, "train=0 is too small"),
        ({"seed": "x"}, "seed='x' is not a whole number"),
        ({"full_reward": "1"}, "full_reward='1' is not a number"),
    ],
)
def test_a_mistake_in_the_settings(settings, message):
    with pytest.raises(InputError, match=message) as caught:
        made(**settings).problems("train")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "rows.jsonl: the file contains no record"),
        ('{"a": 1, "b": 2}\n{"a": 1,\n', r"rows.jsonl, line 2: the record is not valid JSON"),
        ('{"a": 1, "b": 2}\n[1]\n', "rows.jsonl, line 2: the line is not a JSON object"),
        ('{"a": 1, "b": 2}\n{"a": 1, "b": null}\n', "rows.jsonl, line 2: the column `b` is empty"),
        ('{"a": 1, "b": 2}\n{"a": 1}\n', "rows.jsonl, line 2: the row has no column `b`"),
    ],
)
def test_a_broken_row_is_named_with_its_line(text, message):
    Path("rows.jsonl").write_text(text)
    with pytest.raises(InputError, match=message):
        made("rows.jsonl", reward=lambda text: 1.0).problems("train")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "`source`: there are no rows"),
        (3, "`source` is int, not a list of rows"),
        ({"train": ROWS}, r"`source` is dict, not a list of rows; .*data\[\"train\"\]"),
        ([1], "`source`, row 0: the row is int, not a dict"),
        (None, "no data is given; set `source`"),
    ],
)
def test_rows_that_are_none(rows, message):
    with pytest.raises(InputError, match=message):
        made(rows).problems("train")


def test_messages_that_end_with_the_response():
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    with pytest.raises(InputError, match=r"`prompt` end with the role `assistant`.*remove the last message"):
        Dataset([{"prompt": chat}], reward=lambda text: 1.0).problems("train")


def test_a_ground_truth_that_the_reward_cannot_use_is_named_with_its_row():
    task = made(reward="countdown", answer="note")
    with pytest.raises(InputError, match=r"`source`, row 0: countdown ground truth: the text is not JSON"):
        judged(task, ["<answer>1 + 1</answer>"])


def test_no_test_split_and_a_foreign_problem():
    with pytest.raises(InputError, match="the dataset has no test split; set `test`"):
        made().problems("test")
    with pytest.raises(InputError, match="problem p: this problem is not of the dataset"):
        made().judge(Problem("p", (), ""), "x")


# judge_many of any task


class Many:
    """A task that judges many responses in one call."""

    def __init__(self, judge_many):
        self.judge_many = judge_many

    def judge(self, problem, text):
        raise AssertionError


def test_judge_many_replaces_judge_and_a_bad_verdict_fails_its_row_alone():
    sound, problem = Verdict(1.0, True, "right"), Problem("p", (), "")
    task = Many(lambda problems, texts: [sound if text == "a" else None for text in texts])
    one, other = judge_texts(task, [problem] * 2, ["a", "b"])
    assert (one, other.reason, other.failed) == (sound, JUDGE_RAISED, True)
    with pytest.raises(EgpoError, match="`judge_many` returned 1 verdicts for 2 texts"):
        judge_texts(Many(lambda problems, texts: [sound]), [problem] * 2, ["a", "b"])


def test_judge_many_gets_a_bounded_number_at_a_time(monkeypatch):
    monkeypatch.setattr("egpo.tasks.protocol.MOST_AT_ONCE", 3)
    sizes = []

    def judge_many(problems, texts):
        sizes.append(len(texts))
        return [Verdict(float(text), False, "n") for text in texts]

    verdicts = judge_texts(Many(judge_many), [Problem("p", (), "")] * 8, [str(i) for i in range(8)])
    assert [v.reward for v in verdicts] == list(range(8))
    assert sizes == [3, 3, 2]


# In use


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
def test_train_probe_and_evaluate_from_python():
    def reward(completions, **columns):
        return [None if row % 3 == 0 else float(len(text) % 2) for row, text in enumerate(completions)]

    task = Dataset(ROWS, prompt=PROMPT, reward=reward, test=4)
    run = egpo.train(SMALL, task=task, name="rows", quiet=True, **{"rollout.n": 4})
    assert run.steps == 1
    found = egpo.evaluate(run, task, n=4, max_tokens=8)
    assert found.evaluation.figures.num_failed > 0
    assert (
        egpo.probe(model="egpo-tiny", task=task, problems=4, n=4, max_tokens=8).probe.evaluation.exam.split == "train"
    )


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
def test_the_commands_train_and_evaluate_and_a_wrong_reward_ends_them_with_code_2():
    from typer.testing import CliRunner

    from egpo.cli.main import app

    write_lines("rows.jsonl", ROWS)
    reward = Path("mine.py")
    reward.write_text("def f(completions, **columns):\n    return [float(len(text) % 2) for text in completions]\n")
    words = ["model.path=egpo-tiny", "rollout.prompts=2", "rollout.n=2", "rollout.max_response_tokens=8", "steps=1"]
    words += ["validation.every=0", "task.name=dataset", "task.settings.source=rows.jsonl"]
    words += [f"task.settings.prompt='{PROMPT}'", "task.settings.reward=mine.py:f", "task.settings.test=4"]
    assert CliRunner().invoke(app, ["train", *words, "name=r"]).exit_code == 0
    done = CliRunner().invoke(app, ["eval", "runs/r", "--n", "2", "--problems", "4", "--max-tokens", "8"])
    assert done.exit_code == 0, done.output
    reward.write_text("def f(completions):\n    return ['good'] * len(completions)\n")
    done = CliRunner().invoke(app, ["train", *words, "name=again"])
    assert isinstance(done.exception, InputError), done.exception
    assert str(done.exception).startswith(
        "reward mine.py:f: the function returned 'good', which is not a reward; return a number"
    )


def test_the_digest_of_the_data_changes_with_the_rows_and_with_the_reward():
    from egpo.config import load_config
    from egpo.prepared_data import data_digest

    write_lines("rows.jsonl", ROWS)
    Path("mine.py").write_text("def f(text):\n    return 1.0\n")
    settings = {"source": "rows.jsonl", "prompt": PROMPT, "reward": "mine.py:f"}
    words = ["model.path=egpo-tiny", "task.name=dataset", f"task.settings={json.dumps(settings)}"]
    config = load_config(None, words)
    digests = [data_digest(config)]
    Path("mine.py").write_text("def f(text):\n    return 0.0\n")
    digests.append(data_digest(config))
    write_lines("rows.jsonl", ROWS[1:])
    digests.append(data_digest(config))
    assert len(set(digests)) == 3


def test_verls_workers_find_data_and_reward_from_another_folder(monkeypatch):
    from egpo.tasks.loading import worker_settings
    from egpo.verl.launch import task_reward

    write_lines("rows.jsonl", ROWS)
    Path("mine.py").write_text(
        "def f(completions, sum):\n    return [float(t == str(s)) for t, s in zip(completions, sum)]\n"
    )
    settings = {"source": "rows.jsonl", "prompt": PROMPT, "reward": "mine.py:f", "test": 4}
    handed, launched_in = json.dumps(settings), str(Path.cwd())
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    monkeypatch.syspath_prepend(launched_in)  # as the launcher does by PYTHONPATH
    place = {"split": "test", "index": 1}
    truth = json.loads(load_task("dataset", **worker_settings("dataset", settings)).problems("test")[1].ground_truth)[
        "sum"
    ]
    right = task_reward.compute_score("", str(truth), "", place, task="dataset", settings=handed)
    wrong = task_reward.compute_score("", "x", "", place, task="dataset", settings=handed)
    assert (right["score"], right["acc"], wrong["score"], wrong["failed"]) == (1.0, 1.0, 0.0, 0.0)


def test_the_commands_of_the_page_run(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    blocks = re.findall(r"^```bash\n(.*?)^```$", (ROOT / "docs/your_data.md").read_text(), re.DOTALL | re.MULTILINE)
    commands = [line for line in "".join(blocks).replace("\\\n", " ").splitlines() if line.startswith("egpo ")]
    assert len(commands) >= 3
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in commands:
        small = f"{command} steps=1 validation.every=0" if command.startswith("egpo train") else command
        done = subprocess.run(small, shell=True, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, f"{small}\n{done.stdout}\n{done.stderr}"
