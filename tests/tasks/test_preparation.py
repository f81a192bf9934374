"""Preparations: byte-identical for one seed, disjoint splits, the public rules, and tasks that read them back."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from egpo.data import read_manifest, read_rows
from egpo.errors import InputError
from egpo.rewards import score
from egpo.rewards.sandbox import sandbox_status
from egpo.tasks import load_task
from egpo.tasks.loading import SOURCED_TASKS
from egpo.tasks.preparation import prepare

needs_sandbox = pytest.mark.skipif(not sandbox_status().ok, reason="no sandbox works here")
REAL_GSM8K = Path(__file__).resolve().parents[2] / "../shared/data/gsm8k"


def make(name, out, **options):
    return prepare(SOURCED_TASKS[name](), out, **options)


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def keys(name, out):
    task = load_task(name, source=out)
    return {split: [problem.key for problem in task.problems(split)] for split in ("train", "test")}


@pytest.mark.parametrize("name", sorted(SOURCED_TASKS))
def test_the_same_seed_gives_the_same_bytes_and_no_problem_is_in_both_splits(tmp_path, name):
    for out, seed in (("a", 3), ("b", 3), ("c", 4)):
        make(name, tmp_path / out, train=70, test=30, seed=seed)
    files = {out: {path.name: path.read_bytes() for path in (tmp_path / out).iterdir()} for out in "abc"}
    assert files["a"] == files["b"]
    assert files["a"]["train.parquet"] != files["c"]["train.parquet"]
    assert set(files["a"]) - {"unseen.parquet"} == {"train.parquet", "test.parquet", "manifest.json"}
    found = keys(name, tmp_path / "a")
    assert (len(found["train"]), len(found["test"])) == (70, 30)
    assert not set(found["train"]) & set(found["test"])


@pytest.mark.parametrize("name", sorted(SOURCED_TASKS))
def test_a_task_reads_back_what_it_wrote(tmp_path, name):
    make(name, tmp_path / "out", train=40, test=20, seed=9)
    drawn = load_task(name, train=40, test=20, seed=9)
    stored = load_task(name, source=tmp_path / "out")
    for split in ("train", "test"):
        assert list(stored.problems(split)) == list(drawn.problems(split))
        assert [stored.gold(p) for p in stored.problems(split)] == [drawn.gold(p) for p in drawn.problems(split)]
    assert len(load_task(name, source=tmp_path / "out", train=7).problems("train")) == 7


@pytest.mark.parametrize("name", sorted(SOURCED_TASKS))
def test_the_rows_are_verls(tmp_path, name):
    make(name, tmp_path / "out", train=5, test=3)
    rows = pq.read_table(tmp_path / "out" / "test.parquet").to_pylist()
    for index, row in enumerate(rows):
        assert set(row) == {"data_source", "prompt", "ability", "reward_model", "extra_info"}
        assert row["reward_model"]["style"] == "rule"
        assert isinstance(row["reward_model"]["ground_truth"], str)
        assert (row["extra_info"]["split"], row["extra_info"]["index"]) == ("test", index)
        assert row["prompt"][-1]["role"] == "user"
        assert row["ability"]
        assert row["data_source"] == SOURCED_TASKS[name].generated_data_source


@needs_sandbox
@pytest.mark.parametrize("name", sorted(SOURCED_TASKS))
def test_the_answer_in_a_row_earns_full_reward_by_the_columns_that_verl_hands_on(tmp_path, name):
    make(name, tmp_path / "out", train=12, test=2)
    for row in pq.read_table(tmp_path / "out" / "train.parquet").to_pylist():
        extra = row["extra_info"]
        verdict = score(row["data_source"], extra["answer"], row["reward_model"]["ground_truth"], extra)
        assert verdict.correct, (row, verdict)
        assert not score(row["data_source"], "no", row["reward_model"]["ground_truth"], extra).correct


def test_mixed_rows_say_their_ability_where_verl_hands_it_on(tmp_path):
    make("mixed", tmp_path / "out")
    rows = pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert {row["ability"] for row in rows} == {"math", "code"}
    assert all(row["ability"] == row["extra_info"]["ability"] for row in rows)


def test_the_manifest_of_a_preparation(tmp_path):
    done = make("countdown", tmp_path / "out", train=5, test=3, seed=8)
    manifest = read_manifest(tmp_path / "out")
    assert (manifest.source, manifest.source_sha256, manifest.seed, manifest.version) == ("generator", "", 8, 1)
    assert manifest.files == done.files
    source = write_lines(tmp_path / "rows.jsonl", [{"target": i, "nums": [i, 1]} for i in range(9)])
    make("countdown", tmp_path / "other", train=5, test=3, source=source)
    manifest = read_manifest(tmp_path / "other")
    assert manifest.source == "rows.jsonl"
    assert len(manifest.source_sha256) == 64


def test_the_public_countdown_rule_train_first_then_the_next_that_are_new(tmp_path):
    rows = [{"target": i, "nums": [i, 1, 2]} for i in range(10)]
    rows.insert(6, {"target": 3, "nums": [2, 3, 1]})  # row 3 in another order
    done = make("countdown", tmp_path / "out", train=5, test=4, source=write_lines(tmp_path / "rows.jsonl", rows))
    assert done.dropped == {"in_other_split": 1}
    found = keys("countdown", tmp_path / "out")
    assert [key.partition("=")[2] for key in found["train"] + found["test"]] == list("012345678")


def test_the_public_countdown_sizes_are_the_default(tmp_path):
    source = write_lines(tmp_path / "rows.jsonl", [{"target": 3, "nums": [1, 2]}] * 10)
    with pytest.raises(InputError, match=r"rows.jsonl: 327680 rows are requested, but only 10 are left.*--train"):
        make("countdown", tmp_path / "out", source=source)
    assert not (tmp_path / "out").exists()


def gsm(i):
    return {"question": f"What is {i} + 1?", "answer": f"It is {i + 1}.\n#### {i + 1:,}"}


def test_gsm8k_from_a_directory_keeps_its_splits_and_never_leaks_test_into_train(tmp_path):
    (tmp_path / "in").mkdir()
    write_lines(tmp_path / "in" / "train.jsonl", [gsm(i) for i in range(1000, 1010)])
    write_lines(tmp_path / "in" / "test.jsonl", [gsm(i) for i in range(1008, 1012)])
    done = make("gsm8k", tmp_path / "out", source=str(tmp_path / "in"))
    assert {name: entry.rows for name, entry in done.files.items()} == {"train.parquet": 8, "test.parquet": 4}
    assert done.dropped == {"in_other_split": 2}
    row = next(read_rows(tmp_path / "out" / "test.parquet"))
    assert (row.ground_truth, row.data_source) == ("1009", "openai/gsm8k")


@pytest.mark.skipif(not REAL_GSM8K.is_dir(), reason="the GSM8K files are not beside the checkout")
def test_the_real_gsm8k(tmp_path):
    done = make("gsm8k", tmp_path / "out", source=str(REAL_GSM8K))
    assert {name: entry.rows for name, entry in done.files.items()} == {"train.parquet": 7473, "test.parquet": 1319}
    assert done.dropped == {}
    task = load_task("gsm8k", source=tmp_path / "out")
    for split in ("train", "test"):
        for problem in task.problems(split)[::10]:
            assert task.judge(problem, task.gold(problem)).correct
            assert not task.judge(problem, task.gold(problem) + "1").correct
        assert not any("," in row.ground_truth for row in read_rows(tmp_path / "out" / f"{split}.parquet"))


RAW = {
    "0": {"role": "system", "tools": '[{"name": "f"}]'},
    "1": {"role": "user", "content": "q"},
    "2": {"role": "assistant", "content": "[f()]"},
}
XLAM = {"query": "q", "tools": '[{"name": "f"}]', "answers": '[{"name": "f"}]'}
MESSAGES = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "no"}]}


@pytest.mark.parametrize(("record", "other"), [(RAW, XLAM), (XLAM, MESSAGES), (MESSAGES, RAW)])
def test_function_calling_takes_each_format_and_no_mixture(tmp_path, record, other):
    def numbered(value, i):
        return json.loads(json.dumps(value).replace('"q"', f'"q{i}"'))

    rows = [numbered(record, i) for i in range(6)]
    done = make("function_calling", tmp_path / "out", train=4, test=2, source=write_lines(tmp_path / "a.jsonl", rows))
    assert [entry.rows for entry in done.files.values()] == [4, 2]
    mixture = write_lines(tmp_path / "b.jsonl", [*rows[:3], numbered(other, 9), *rows[3:]])
    with pytest.raises(
        InputError, match=r"b.jsonl, line 4: this record has the format \w+, but earlier ones have the format \w+"
    ):
        make("function_calling", tmp_path / "out2", train=4, test=2, source=mixture)


def test_what_function_calling_drops_is_counted(tmp_path):
    rows = [{**RAW, "1": {"role": "user", "content": str(i)}} for i in range(6)]
    rows.insert(2, {**RAW, "2": {"role": "assistant", "content": "words"}})
    done = make("function_calling", tmp_path / "out", train=4, test=2, source=write_lines(tmp_path / "a.jsonl", rows))
    assert done.dropped == {"no_call": 1}


def test_code_and_mixed_rows_of_a_file(tmp_path):
    tests = {"inputs": ["1\n"], "outputs": ["2\n"]}
    code = [{"question": f"add {i}", "tests": tests, "solution": "print(int(input()) + 1)"} for i in range(4)]
    make("code", tmp_path / "code", train=3, test=1, source=write_lines(tmp_path / "code.jsonl", code))
    problem = load_task("code", source=tmp_path / "code").problems("train")[0]
    assert json.loads(problem.ground_truth) == tests
    rows = [{**row, "ability": "code"} for row in code] + [
        {"ability": "math", "question": f"{i}?", "answer": i} for i in range(4)
    ]
    make("mixed", tmp_path / "mixed", train=7, test=1, source=write_lines(tmp_path / "mixed.jsonl", rows))
    task = load_task("mixed", source=tmp_path / "mixed")
    assert task.judge(task.problems("test")[0], "\\boxed{3}").correct


def test_a_code_row_without_a_solution_has_no_gold(tmp_path):
    rows = [{"question": f"q{i}", "tests": {"assert": ["assert f() == 1"]}} for i in range(2)]
    make("code", tmp_path / "out", train=1, test=1, source=write_lines(tmp_path / "rows.jsonl", rows))
    task = load_task("code", source=tmp_path / "out")
    with pytest.raises(InputError, match="has no solution; add"):
        task.gold(task.problems("train")[0])


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("countdown", {"target": 3}, "no `nums`"),
        ("countdown", {"target": "3", "nums": [1]}, "no `target`"),
        ("countdown", {"target": True, "nums": [1]}, "no `target`"),
        ("countdown", {"target": 3, "nums": [1.5]}, "no `nums`"),
        ("gsm8k", {"question": "q"}, "no `question` or no `answer`"),
        ("gsm8k", {"question": "q", "answer": "18"}, "the answer has no `####`"),
        ("gsm8k", {"question": "q", "answer": "#### "}, "no number after"),
        ("code", {"question": "q"}, "no `tests`"),
        ("code", {"tests": {"assert": ["x"]}}, "no `question`"),
        ("code", {"question": "q", "tests": {"nothing": 1}}, "the row's tests cannot be read"),
        ("mixed", {"question": "q", "answer": "1"}, "`ability` is None"),
        ("mixed", {"ability": "math", "question": "q"}, "no `question` or no `answer`"),
        ("function_calling", {"query": "q"}, "no `tools`, `answers`"),
        ("function_calling", {"what": 1}, "not a HardGen conversation"),
    ],
)
def test_a_row_without_its_ground_truth_names_its_line(tmp_path, name, row, message):
    good = {
        "countdown": {"target": 3, "nums": [1, 2]},
        "gsm8k": gsm(1),
        "code": {"question": "a", "tests": {"assert": ["assert f()"]}},
        "mixed": {"ability": "math", "question": "a", "answer": 1},
        "function_calling": XLAM if "query" in row else RAW,
    }[name]
    source = write_lines(tmp_path / "rows.jsonl", [good, row])
    with pytest.raises(InputError, match=f"rows.jsonl, line 2: .*{message}"):
        make(name, tmp_path / "out", train=5, test=5, source=source)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": 0}, "--train"),
        ({"test": -1}, "--test"),
        ({"source": "absent.jsonl"}, "no such file"),
        ({"source": "absent"}, "no such file"),
    ],
)
def test_options_that_cannot_be(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        make("gsm8k", tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_an_undivided_source_needs_sizes(tmp_path):
    source = write_lines(tmp_path / "rows.jsonl", [gsm(i) for i in range(5)])
    with pytest.raises(InputError, match=r"the source is not split.*--train N and --test N"):
        make("gsm8k", tmp_path / "out", source=source)


def test_text_that_no_file_can_hold(tmp_path):
    source = write_lines(tmp_path / "rows.jsonl", [gsm(1), {**gsm(2), "question": "\ud800"}, gsm(3)])
    with pytest.raises(InputError, match="lone surrogate"):
        make("gsm8k", tmp_path / "out", train=2, test=1, source=source)
    assert not (tmp_path / "out").exists()


def test_a_generator_that_runs_dry_leaves_nothing(tmp_path):
    task = load_task("countdown", min_numbers=2, max_numbers=2, max_number=3)
    with pytest.raises(InputError, match="different problems"):
        prepare(task, tmp_path / "out", train=100, test=1)
    assert not (tmp_path / "out").exists()


def test_another_tasks_directory_is_told_as_such(tmp_path):
    make("gsm8k", tmp_path / "out", train=5, test=3)
    with pytest.raises(InputError, match="check that the data is of this task"):
        load_task("countdown", source=tmp_path / "out").problems("train")[0]


def test_a_file_that_was_changed_is_not_read_as_the_one_that_was_prepared(tmp_path):
    make("gsm8k", tmp_path / "a", train=5, test=3, seed=1)
    make("gsm8k", tmp_path / "b", train=5, test=3, seed=2)
    (tmp_path / "a" / "train.parquet").write_bytes((tmp_path / "b" / "train.parquet").read_bytes())
    with pytest.raises(InputError, match="does not match its digest in manifest"):
        load_task("gsm8k", source=tmp_path / "a").problems("train")
