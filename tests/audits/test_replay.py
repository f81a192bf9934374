"""Stored rollouts through a reward once more."""

import json
import sys
import tracemalloc
import warnings

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from egpo.audits import audit_rewards
from egpo.errors import InputError, forget_warnings
from egpo.verl.reward import compute_score

OURS = [
    {
        "data_source": "gsm8k",
        "prompt": "q",
        "response": f"#### {i % 4}",
        "ground_truth": "1",
        "reward": float(i % 4 == 1),
    }
    for i in range(40)
]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def ours(tmp_path):
    return write_lines(tmp_path / "step_1.jsonl", OURS)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_counts_are_those_of_the_reward(ours, workers):
    audit = audit_rewards(ours, workers=workers)
    assert (audit.ours.rows, audit.ours.correct, audit.ours.failed) == (40, 10, 0)
    assert audit.ours.accuracy == audit.ours.mean_reward == 0.25
    assert audit.ours.reasons == {"correct": 10, "wrong_number": 30}
    assert audit.theirs is None


def verl_line(source, text, truth, step=3, **more):
    """As verl 0.9.1 writes it: `_write_generations` of its trainers, with the extras of the reward."""
    told = compute_score(source, text, truth)
    return {"input": "user\nq\nassistant\n", "output": text, "gts": truth, "step": step, **told, **more}


def test_verls_rollout_file_with_our_extras_says_its_own_source(tmp_path):
    rows = [verl_line("gsm8k", "#### 18", "18"), verl_line("countdown", "no", '{"numbers": [1], "target": 1}')]
    audit = audit_rewards(write_lines(tmp_path / "3.jsonl", rows), against="stored", workers=0)
    assert set(audit.sources) == {"gsm8k", "countdown"}
    assert audit.num_different == 0


def test_verls_rollout_file_without_extras_needs_a_reward(tmp_path):
    row = {"input": "q", "output": "#### 18", "gts": "18", "score": 1.0, "step": 3, "uid": "a_0_0"}
    path = write_lines(tmp_path / "3.jsonl", [row])
    assert audit_rewards(path, reward="gsm8k", against="stored", workers=0).num_different == 0
    with pytest.raises(
        InputError,
        match="line 1: the record has no `data_source`, which chooses the reward; choose the reward with --reward",
    ):
        audit_rewards(path, workers=0)


def test_parquet_with_a_column_of_responses(tmp_path):
    rows = [
        {"data_source": "mixed", "ability": "math", "reward_model": {"style": "rule", "ground_truth": "5"},
         "extra_info": {"split": "train", "index": i}, "response": rf"\boxed{{{5 + i}}}"}
        for i in range(3)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "r.parquet")
    assert audit_rewards(tmp_path / "r.parquet", workers=0).ours.reasons == {"correct": 1, "wrong_answer": 2}


def test_verls_generation_has_all_responses_to_a_prompt_in_one_row(tmp_path):
    rows = [
        {"data_source": "gsm8k", "reward_model": {"ground_truth": "5"}, "responses": ["#### 5", "#### 6"]},
        {"data_source": "gsm8k", "reward_model": {"ground_truth": "6"}, "responses": ["none"]},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "r.parquet")
    audit = audit_rewards(tmp_path / "r.parquet", against="gsm8k@shaped", workers=0)
    assert audit.ours.reasons == {"correct": 1, "wrong_number": 1, "no_answer": 1}
    assert [one.where.rpartition("row ")[2] for one in audit.differences] == ["0, response 0", "0, response 1"]


def test_no_response_at_all_is_an_error(tmp_path):
    path = write_lines(tmp_path / "r.jsonl", [{"data_source": "gsm8k", "ground_truth": "5", "responses": []}])
    with pytest.raises(InputError, match="contains no response"):
        audit_rewards(path, workers=0)


@pytest.mark.parametrize("stored", [1e999, 10**400])
def test_a_stored_reward_that_is_not_finite_is_a_failure(tmp_path, stored):
    path = tmp_path / "r.jsonl"
    path.write_text(
        json.dumps({**OURS[0], "reward": 0}).replace('"reward": 0', f'"reward": {str(stored).replace("inf", "1e999")}')
    )
    audit = audit_rewards(path, against="stored", workers=0)
    assert (audit.theirs.failed, audit.num_different) == (1, 1)


def test_two_rewards_and_the_rows_on_which_they_differ(tmp_path):
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    texts = [call, f"<think>x</think>{call}", "nothing"]
    rows = [{"data_source": "bfcl", "response": text, "ground_truth": call} for text in texts]
    path = write_lines(tmp_path / "r.jsonl", rows)
    audit = audit_rewards(path, reward="bfcl@strict_think", against="bfcl@plain", workers=1)
    assert audit.num_different == 1
    (one,) = audit.differences
    assert (one.index, one.ours.reason, one.theirs.reason, one.response) == (0, "no_thinking", "correct", call)
    assert "line 1" in one.where
    assert (audit.ours.correct, audit.theirs.correct) == (1, 2)


def test_stored_rewards_that_went_through_float32_do_not_differ(tmp_path):
    row = {
        "data_source": "countdown",
        "response": "<answer>1</answer>",
        "ground_truth": '{"numbers": [1], "target": 1}',
    }
    stored = 0.8999999761581421
    path = write_lines(tmp_path / "r.jsonl", [{**row, "score": stored, "acc": 1.0}, {**row, "score": 0.8, "acc": 1.0}])
    audit = audit_rewards(path, against="stored", workers=0)
    assert [one.index for one in audit.differences] == [1]


def test_a_failure_is_neither_right_nor_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr("egpo.rewards.code._default_sandbox", lambda: None)
    row = {"data_source": "code", "response": "```python\n1\n```", "ground_truth": '{"assert": "assert f(2) == 4"}'}
    path = write_lines(tmp_path / "r.jsonl", [row, {**row, "response": ""}])
    audit = audit_rewards(path, workers=0)
    assert (audit.ours.rows, audit.ours.judged, audit.ours.failed) == (2, 1, 1)
    assert audit.ours.accuracy == 0.0
    audit = audit_rewards(write_lines(path, [row]), workers=0)
    assert audit.ours.accuracy != audit.ours.accuracy


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"data_source": "gsm8k", "resp', "line 3: the record is not valid JSON"),
        ('{"data_source": "gsm8k", "response": "x"}', "line 3: the row has no ground truth"),
        ('{"data_source": "gsm8k", "ground_truth": "1"}', "line 3: the row has no response"),
        ('{"data_source": "gsm8k", "response": "x", "ground_truth": "none"}', "gsm8k ground truth: there is no number"),
        ('{"data_source": "gsm9k", "response": "x", "ground_truth": "1"}', "line 3, rewards: unknown data source"),
        ("[1]", "line 3: the line is not a JSON object"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, what, workers):
    good = json.dumps(OURS[0])
    (tmp_path / "r.jsonl").write_text(f"{good}\n{good}\n{line}\n{good}\n")
    with pytest.raises(InputError, match=what):
        audit_rewards(tmp_path / "r.jsonl", workers=workers)


def test_a_row_without_a_stored_reward_is_named(tmp_path):
    row = {key: value for key, value in OURS[0].items() if key != "reward"}
    path = write_lines(tmp_path / "r.jsonl", [OURS[0], row])
    with pytest.raises(InputError, match="line 2: the record has no stored reward"):
        audit_rewards(path, against="stored", workers=0)
    assert audit_rewards(path, reward="stored", limit=1, workers=0).ours.rows == 1


def test_missing_file_and_unknown_reward(tmp_path, ours):
    with pytest.raises(InputError, match="no such file"):
        audit_rewards(tmp_path / "none.jsonl")
    for workers in (0, 1):
        with pytest.raises(InputError, match=r"unknown reward `gsm8`.*did you mean `gsm8k`"):
            audit_rewards(ours, against="gsm8", workers=workers)


def test_only_what_is_shown_is_held(tmp_path):
    row = {"data_source": "gsm8k", "response": "x" * 20_000, "ground_truth": "1", "reward": 1.0}
    path = write_lines(tmp_path / "r.jsonl", [row] * 3000)  # 60 MB, and every row differs
    tracemalloc.start()
    audit = audit_rewards(path, against="stored", workers=0, keep=5)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (audit.num_different, len(audit.differences)) == (3000, 5)
    assert peak < 10e6


def test_rewards_that_are_a_little_apart_differ(tmp_path):
    rows = [{**OURS[1], "reward": 1.0 - apart, "correct": True} for apart in (0.005, 2e-6, 5e-7)]
    audit = audit_rewards(write_lines(tmp_path / "r.jsonl", rows), against="stored", workers=0)
    assert [one.index for one in audit.differences] == [0, 1]


def test_a_stored_failure_is_a_failure(tmp_path):
    rows = [{**OURS[1], "correct": True, "failed": True, "reason": "timeout"}, {**OURS[1], "failed": False}]
    audit = audit_rewards(write_lines(tmp_path / "r.jsonl", rows), reward="stored", workers=0)
    assert (audit.ours.rows, audit.ours.failed, audit.ours.correct) == (2, 1, 1)
    assert audit.ours.reasons == {"timeout": 1, "stored": 1}
    against = audit_rewards(tmp_path / "r.jsonl", against="stored", workers=0)
    assert [one.index for one in against.differences] == [0]


@pytest.mark.parametrize("name", ["math@bogus", "gsm8k@bogus", "function_calling@bogus", "code@bogus", "gsm8"])
@pytest.mark.parametrize("option", ["reward", "against"])
def test_an_unknown_reward_or_mode_is_told_before_the_file_is_read(tmp_path, name, option):
    (tmp_path / "r.jsonl").write_text("not JSON")
    with pytest.raises(InputError, match=r"bogus|unknown reward"):
        audit_rewards(tmp_path / "r.jsonl", **{option: name}, workers=0)


@pytest.fixture
def leaving(tmp_path, monkeypatch):
    """Rewards that leave the program: one when it judges, one when it is imported."""
    (tmp_path / "leaving_reward.py").write_text(
        "import sys\ndef judge(solution_str):\n    if solution_str == 'leave': sys.exit('no licence')\n    return 1.0\n"
    )
    (tmp_path / "gone_reward.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    rows = [{**OURS[0], "response": text} for text in ("stay", "leave", "stay")]
    yield write_lines(tmp_path / "r.jsonl", rows)
    sys.modules.pop("leaving_reward", None)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_reward_that_leaves_the_program_says_so(leaving, workers, capfd):
    forget_warnings()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        audit = audit_rewards(leaving, reward="leaving_reward:judge", workers=workers)
    assert audit.ours.reasons == {"scored": 2, "reward_raised": 1}
    assert audit.ours.failed == 1
    heard = capfd.readouterr().err + " ".join(str(one.message) for one in told)
    assert "leaving_reward:judge raised SystemExit: no licence" in heard


@pytest.mark.parametrize("workers", [0, 1])
def test_a_reward_that_leaves_the_program_when_imported_is_the_users_mistake(leaving, workers):
    with pytest.raises(InputError, match=r"importing `gone_reward` failed \(SystemExit: 3\)"):
        audit_rewards(leaving, reward="gone_reward:judge", workers=workers)


def test_the_mode_of_the_run_holds_only_for_rewards_that_have_it(tmp_path):
    folder = tmp_path / "run"
    (folder / "verl" / "rollouts").mkdir(parents=True)
    (folder / "config.yaml").write_text("task: {name: countdown, settings: {mode: binary, source: /gone}}\n")
    puzzle = '{"numbers": [1, 2], "target": 3}'
    rows = [
        {"data_source": "countdown", "response": "<answer>1 - 2</answer>", "ground_truth": puzzle, "reward": 0.0},
        {"data_source": "math", "response": r"\boxed{3}", "ground_truth": "3", "reward": 1.0},
    ]
    for place in (folder / "verl" / "rollouts", folder / "rollouts"):
        place.mkdir(exist_ok=True)
        audit = audit_rewards(write_lines(place / "1.jsonl", rows), against="stored", workers=0)
        assert (audit.num_different, audit.run_mode.mode) == (0, "binary")
    elsewhere = audit_rewards(write_lines(folder / "1.jsonl", rows), against="stored", workers=0)
    assert (elsewhere.run_mode, elsewhere.num_different) == (None, 1)
