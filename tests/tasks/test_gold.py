"""Five-column verl parquet to conversations: the assistant's turn out of the ground truth."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from egpo.cli.convert import convert_app
from egpo.data import DROP_REASONS, Dropped, Row
from egpo.rewards import score
from egpo.tasks.gold import gold_answer

CALLS = [{"name": "weather.get", "arguments": {"city": "Lagos", "days": 2}}, {"name": "stop", "arguments": {}}]
TAGGED = '<tool_call>\n{"name": "weather.get", "arguments": {"city": "Lagos", "days": 2}}\n</tool_call>'


def row_of(source, ground_truth, ability="math", **extra):
    truth = ground_truth if isinstance(ground_truth, str) else json.dumps(ground_truth)
    return Row(source, ({"role": "user", "content": "?"},), ability, truth, extra)


ACCEPTED = [
    ("function_calling", CALLS, "function_calling", {"mode": "plain"}),
    ("function_calling", "[weather.get(city='Lagos', days=2)]", "function_calling", {"mode": "plain"}),
    ("somebody/tools", TAGGED, "function_calling", {"mode": "plain"}),
    ("bfcl", [{"weather.get": {"city": ["Lagos", "lagos"], "unit": ["", "C"]}}], "tools", {"mode": "plain"}),
    ("openai/gsm8k", "1234", "math", {}),
    ("countdown", {"numbers": [2, 3, 5], "target": 21}, "math", {}),
    ("countdown", {"nums": [2, 3, 5], "target": 21}, "math", {}),
    ("lighteval/MATH", r"\frac{1}{2}", "math", {}),
    ("mixed", "42", "math", {"ability": "math"}),
]


@pytest.mark.parametrize(("source", "truth", "ability", "settings"), ACCEPTED)
def test_an_answer_that_the_reward_accepts_is_written_from_the_ground_truth(source, truth, ability, settings):
    row = row_of(source, truth, ability)
    answer = gold_answer(row)
    judged_as = "function_calling" if source == "somebody/tools" else source
    assert isinstance(answer, str)
    assert score(judged_as, answer, row.ground_truth, settings).correct


def test_the_forms_of_the_answers():
    assert gold_answer(row_of("function_calling", CALLS[:1])) == TAGGED
    assert gold_answer(row_of("gsm8k", "72")) == "#### 72"
    assert gold_answer(row_of("gsm8k", "72", answer="8 * 9 = 72\n#### 72")) == "8 * 9 = 72\n#### 72"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (row_of("function_calling", "[]", "function_calling"), "no_answer"),
        (row_of("function_calling", "Call the weather tool.", "function_calling"), "bad_ground_truth"),
        (row_of("countdown", {"numbers": [1, 1], "target": 99}), "no_solution"),
        (row_of("countdown", {"numbers": [1, 2, 3, 4, 5], "target": 15}), "search_too_long"),
        (row_of("countdown", {"target": 15}), "bad_ground_truth"),
        (row_of("gsm8k", "many"), "bad_ground_truth"),
        (row_of("code", {"inputs": ["1"], "outputs": ["1"]}, "code"), "no_answer"),
        (row_of("somebody/poems", "ode", "poetry"), "unknown_data_source"),
    ],
)
def test_what_cannot_be_answered_has_a_reason(row, reason):
    assert gold_answer(row) == Dropped(reason)
    assert reason in DROP_REASONS


def test_egpo_convert_parquet_reads_five_columns_whose_only_answer_is_the_ground_truth(tmp_path):
    truths = ["3", "4", "many"]
    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"Question {index}?"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": {"split": "train", "index": index},
        }
        for index, truth in enumerate(truths)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    words = ["parquet", str(tmp_path / "train.parquet"), "--out", str(tmp_path / "sft"), "--json"]
    done = CliRunner().invoke(convert_app, words)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["rows"], told["dropped"]) == ({"train.jsonl": 2}, {"bad_ground_truth": 1})
    lines = [json.loads(line)["messages"] for line in (tmp_path / "sft" / "train.jsonl").read_text().splitlines()]
    assert [line[-1] for line in lines] == [{"role": "assistant", "content": f"#### {n}"} for n in "34"]
    assert lines[0][:-1] == rows[0]["prompt"]
