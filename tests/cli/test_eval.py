"""`egpo eval` as a user meets it."""

import json

import pytest
from typer.testing import CliRunner

from egpo.cli.main import app, main
from egpo.fingerprints import unsealed
from tests.evals.served import completion, served
from tests.local.conftest import model_folder  # noqa: F401  (a fixture)

TASK = "tests.evals.sum_task:Sums"


@pytest.fixture
def egpo_eval(tmp_path, monkeypatch, capsys):
    """Runs the verb in a folder of its own, at 80 columns: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words):
        monkeypatch.setattr("sys.argv", ["egpo", "eval", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code or 0, *capsys.readouterr()

    return call


@pytest.fixture
def server():
    def answer(body, attempt):
        right = int(body["messages"][-1]["content"].split()[0]) + 1
        return 200, completion(str(right if body["model"] == "good" or right % 4 == 0 else 0))

    with served(answer) as running:
        yield running


def test_help_shows_an_example_and_the_options():
    shown = CliRunner().invoke(app, ["eval", "--help"], terminal_width=120).output
    assert "Example:" in shown
    assert all(option in shown for option in ("--task", "--greedy", "--k", "--url", "--set", "--json"))


def test_two_models_are_compared_in_a_table(egpo_eval, server, tmp_path):
    words = ("--url", server.url, "--task", TASK, "--set", "count=24", "--n", "2")
    code, shown, _ = egpo_eval("bad", "good", *words)
    assert code == 0
    assert max(map(len, shown.splitlines())) <= 80
    assert "bad -> good: 24 problems, paired" in shown
    assert "25.0 -> 100.0 (+75.0)" in shown
    assert "better" in shown
    assert "McNemar's exact test: accuracy p =" in shown
    assert "entropy" not in shown
    assert sorted(path.name for path in (tmp_path / "evals").iterdir()) == [
        "bad-served-Sums-n2-t1.json",
        "bad-served-Sums-n2-t1.jsonl",
        "good-served-Sums-n2-t1.json",
        "good-served-Sums-n2-t1.jsonl",
        "server_answers.jsonl",
    ]
    code, shown, _ = egpo_eval("bad", "bad", *words)
    assert "not distinguishable" in shown
    assert len(server.bodies) == 2 * 48


def test_json_is_for_programs(egpo_eval, server, tmp_path):
    code, shown, _ = egpo_eval(
        "bad", "good", "--url", server.url, "--task", TASK, "--greedy", "--json", "--out", "here"
    )
    told = json.loads(shown)
    assert code == 0
    assert [one["label"] for one in told["evaluations"]] == ["bad", "good"]
    assert told["evaluations"][0]["accuracy"]["value"] == pytest.approx(1 / 6)
    assert told["comparisons"][0]["rows"]["accuracy"]["test"] == "McNemar"
    written = json.loads((tmp_path / "here" / "good-served-Sums-greedy.json").read_text())
    assert unsealed(written) == {key: value for key, value in told["evaluations"][1].items() if key != "file"}


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
def test_a_local_model_that_writes_nothing_readable_is_told_so_with_examples(egpo_eval, model_folder):  # noqa: F811
    words = ("--task", "countdown", "--problems", "3", "--n", "2", "--max-tokens", "12")
    code, shown, _ = egpo_eval(model_folder(), *words, "--set", "prompt_format=Make {target} from {numbers}.")
    assert code == 0
    assert "None of 6 responses contains an answer." in shown
    assert shown.count("no_answer_tag, to [") == 3
    assert "accuracy" not in shown
    assert max(map(len, shown.splitlines()[:-2])) <= 80
    assert not [letter for letter in shown if not letter.isprintable() and letter != "\n"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "egpo: egpo eval: no model"),
        (["base"], "egpo: egpo eval: no task is given; name a task, as in --task"),
        (["base", "--task", "cuontdown"], "did you mean `countdown`?"),
        (["base", "--task", TASK, "--k", "1,16"], "pass@16 cannot be computed from 8 responses per problem"),
        (["base", "--task", TASK, "--k", "one"], "is not a list of whole numbers"),
        (["base", "--task", TASK, "--set", "count"], "write KEY=VALUE"),
        (["base", "--task", TASK, "--set", "size=3"], "unknown setting `size`"),
        (["base", "--task", TASK, "--temperature", "0"], "greedy responses are all equal"),
        (["./nowhere", "--task", TASK], "egpo: model ./nowhere: no such folder"),
        (["m", "--url", "nowhere", "--task", TASK], "is not an address"),
        (["m", "--url", "http://x", "--task", TASK, "--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY is not set"),
    ],
)
def test_a_mistake_ends_with_a_message_and_code_2(egpo_eval, words, message):
    code, _, said = egpo_eval(*words)
    assert code == 2
    assert message in said


def test_a_server_that_answers_nothing_ends_with_code_1_and_the_way_on(egpo_eval, server):
    server.answer = lambda body, attempt: (400, b"not today")
    code, _, said = egpo_eval("m", "--url", server.url, "--task", TASK, "--n", "1")
    assert code == 1
    assert "stopped after 0 of 6 responses" in said
    assert "not today" in said
    assert "run the same command again" in said
