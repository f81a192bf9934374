"""`egpo probe` as a user meets it."""

import json

import pytest
from typer.testing import CliRunner

from egpo.cli.main import app, main
from egpo.cli.probe_tables import print_kept, print_probe
from egpo.probes.keep import Kept
from egpo.probes.probe import probe
from tests.local.conftest import model_folder  # noqa: F401  (a fixture)
from tests.probes.scripted import TASK, Scripted, paper_of, probed


@pytest.fixture
def egpo_probe(tmp_path, monkeypatch, capsys):
    """Runs the verb in a folder of its own, at 80 columns: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words):
        monkeypatch.setattr("sys.argv", ["egpo", "probe", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code or 0, *capsys.readouterr()

    return call


def test_help_shows_an_example_and_the_options():
    shown = CliRunner().invoke(app, ["probe", "--help"], terminal_width=120).output
    assert "Example:" in shown
    assert all(option in shown for option in ("--task", "--model", "--keep", "--n", "--problems", "--json"))


def test_the_tables_at_80_columns(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    outcome = probed([0, 1, 3, 8, 2, 4], n=8, num_tokens=9, finished=True, entropy={"response": 0.1, "answer": 0.2})
    print_probe(outcome, tmp_path / "probe.json")
    print_kept(Kept("a/kept", "a/control", 3, 6))
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines() if not line.startswith("written")) <= 80
    assert "scripted: tests.evals.sum_task:Sums, 6 training problems, n 8, temperature 1" in shown
    assert "never ██████" in shown
    assert "kept 3 of 6 problems in a/kept" in shown
    rows = [line.split() for line in shown.splitlines() if "counted" in line or "extrapolated" in line]
    assert [row[row[0] == "→"] for row in rows] == ["2", "4", "8", "16", "32", "64"]
    (chosen,) = [row[1] for row in rows if row[0] == "→"]
    assert f"recommended: rollout.n={chosen}" in shown
    assert "check  entropy 0.100 (wanted: 0.2 to 0.8 nats)" in shown


def test_nothing_readable_is_told_with_examples_that_a_terminal_survives(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    said = Scripted(lambda problem, sample: f"[bold]\x1b[31m{sample}\x07")
    outcome = probe(said, paper_of(3, 2, task="countdown", train=3, test=1, max_number=20))
    print_probe(outcome, tmp_path / "probe.json")
    shown = capsys.readouterr().out
    assert "None of 6 responses contains an answer." in shown
    assert shown.count("[bold]\\x1b[31m") == 3
    assert "accuracy  " not in shown
    assert "problems by pass rate" not in shown
    assert "recommended: no group size" in shown
    assert not [letter for letter in shown if not letter.isprintable() and letter != "\n"]


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
def test_a_real_model_from_a_recipe_with_json_for_programs(egpo_probe, model_folder, tmp_path):  # noqa: F811
    (tmp_path / "r.yaml").write_text(
        f"name: r\nmodel: {{path: {model_folder()}, device: cpu}}\n"
        f"task: {{name: '{TASK}', settings: {{count: 9}}}}\nrollout: {{max_response_tokens: 6}}\n"
    )
    words = ("--n", 2, "--problems", 4, "--keep", "0:1", "--out", "here", "--json")
    code, shown, _ = egpo_probe("r.yaml", "rollout.temperature=2.0", *words)
    told = json.loads(shown)
    assert code == 0
    assert len(told["pass_rates"]) == 4
    assert told["evaluation"]["sampling"]["temperature"] == 2.0
    assert told["evaluation"]["sampling"]["max_tokens"] == 6
    assert told["evaluation"]["entropy"]["response"]["value"] > 0
    assert told["kept"]["num_kept"] == 4
    assert json.loads((tmp_path / "here" / "probe.json").read_text())["pass_rates"] == told["pass_rates"]
    assert (tmp_path / "here" / "control" / "train.parquet").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "egpo: egpo probe: there is no model to probe; give a recipe, or --model and --task"),
        (["--model", "m"], "there is no task to probe on; give one, as in --task"),
        (["--model", "m", "--task", "cuontdown"], "did you mean `countdown`?"),
        (["--model", "m", "--task", TASK, "--set", "size=3"], "unknown setting `size`"),
        (["--model", "m", "--task", TASK, "--keep", "0.1:0.9"], "name a folder for the kept problems with --out"),
        (["--model", "m", "--task", TASK, "--keep", "9", "--out", "o"], "as in 0.1:0.9"),
        (["--model", "./nowhere", "--task", TASK], "egpo: model ./nowhere: no such folder"),
        (["nowhere.yaml"], "nowhere.yaml: no such file"),
        (["--model", "m", "--task", TASK, "--n", "1"], "--n"),
    ],
)
def test_a_mistake_ends_with_a_message_and_code_2(egpo_probe, words, message):
    code, _, said = egpo_probe(*words)
    assert code == 2
    assert message in said
