"""`egpo audit rewards` as a user meets it."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from egpo.cli.audit import audit_app
from egpo.errors import InputError
from egpo.rewards.sandbox import sandbox_status

ROWS = [
    {"data_source": "gsm8k", "response": "[bold]#### 18", "ground_truth": "18", "reward": 1.0},
    {"data_source": "gsm8k", "response": "\ud800\x1b[31m[/red] #### 19", "ground_truth": "18", "reward": 1.0},
    {"data_source": "countdown", "response": "none", "ground_truth": '{"numbers": [1], "target": 1}', "reward": 0.0},
]


@pytest.fixture
def rollouts(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def run(*words):
    return CliRunner().invoke(audit_app, [str(word) for word in words], env={"COLUMNS": "140"})


def test_a_table_of_accuracy_reasons_and_failures(rollouts):
    done = run("rewards", rollouts, "--workers", 0)
    assert done.exit_code == 0, done.output
    for told in (
        "all rows",
        "0.3333",
        "wrong_number",
        "the answer is a number, and not the right one",
        "no_answer_tag",
        "failed",
    ):
        assert told in done.output
    assert "differ" not in done.output


def test_the_rows_that_differ_are_shown_as_text_and_not_obeyed(rollouts):
    done = run("rewards", rollouts, "--against", "stored", "--workers", 1)
    assert done.exit_code == 0, done.output
    assert "2 rows agree, 1 differ" in done.output
    assert r"\ud800\x1b[31m[/red] #### 19" in done.output
    assert "\x1b[31m" not in done.output


def test_json_is_what_the_table_says(rollouts):
    told = json.loads(run("rewards", rollouts, "--against", "stored", "--json", "--workers", 0).stdout)
    assert (told["rows"], told["correct"], told["agree"], told["differ"]) == (3, 1, 2, 1)
    (one,) = told["differences"]
    assert (one["index"], one["ours"]["reason"], one["theirs"]["reward"]) == (1, "wrong_number", 1.0)
    assert told["sources"]["gsm8k"]["accuracy"] == 0.5


def test_rows_and_limit(rollouts):
    told = json.loads(run("rewards", rollouts, "--against", "stored", "--json", "--rows", 0, "--workers", 0).stdout)
    assert (told["differ"], told["differences"]) == (1, [])
    assert json.loads(run("rewards", rollouts, "--json", "--limit", 1, "--workers", 0).stdout)["rows"] == 1


def test_mistakes_are_errors_with_code_2(rollouts, tmp_path):
    for words in (
        ("rewards", tmp_path / "none"),
        ("rewards", rollouts, "--reward", "gsm"),
        ("rewards", rollouts, "--reward", "math@bogus"),
        ("rewards", rollouts, "--workers", -1),
    ):
        done = run(*words)
        assert isinstance(done.exception, InputError), done.output
        assert done.exception.exit_code == 2


def test_help_has_examples_and_is_light():
    assert "egpo audit rewards" in run("rewards", "--help").output
    assert "egpo audit sandbox" in run("sandbox", "--help").output
    code = (
        "import sys, egpo.cli.audit\n"
        "heavy = {'torch', 'transformers', 'pyarrow', 'numpy', 'egpo.rewards', 'egpo.data', 'egpo.audits'}\n"
        "assert not heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_record_says_in_which_sandbox_programs_ran(tmp_path, rollouts):
    path = tmp_path / "programs.jsonl"
    tests = json.dumps({"inputs": ["2\n"], "outputs": ["4\n"]})
    text = "```python\nprint(2 * int(input()))\n```"
    path.write_text(json.dumps({"data_source": "code", "response": text, "ground_truth": tests}) + "\n")
    tier = "bubblewrap" if sandbox_status().ok else "none"
    assert json.loads(run("rewards", path, "--json", "--workers", 0).stdout)["sandbox"].startswith(f"{tier} (")
    assert f"programs ran in: {tier}" in run("rewards", path, "--workers", 0).stdout
    assert json.loads(run("rewards", rollouts, "--json", "--workers", 0).stdout)["sandbox"] is None


def test_an_untouched_run_agrees_with_its_own_rollouts(tmp_path):
    """A run in another mode than the reward's default, trained by the real command, and audited by it."""
    words = ["model.path=egpo-tiny", "task.name=countdown", "task.settings.mode=binary", "steps=1", "name=first"]
    words += ["rollout.prompts=4", "rollout.n=4", "rollout.max_response_tokens=24", "watch.rollouts_every=1"]
    command = [sys.executable, "-m", "egpo", "train", *words]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=240)
    file = tmp_path / "runs" / "first" / "rollouts" / "step_1.jsonl"
    done = json.loads(run("rewards", file, "--against", "stored", "--workers", 0, "--json").stdout)
    assert (done["rows"], done["differ"], done["mode"]) == (16, 0, "binary")
    named = json.loads(run("rewards", file, "--reward", "countdown", "--against", "stored", "--json").stdout)
    assert named["differ"] == 0
    shaped = run("rewards", file, "--reward", "countdown@shaped", "--against", "stored", "--json")
    assert json.loads(shaped.stdout)["differ"] > 0
    assert "reward mode: `binary`, as in" in run("rewards", file).output
