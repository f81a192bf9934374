"""The console script as a user meets it: help, version, exit codes, no traceback for a mistake."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import egpo
import egpo.cli.main as cli_main
from egpo.cli.main import app
from egpo.errors import EgpoError

RECIPE = str(Path(__file__).parents[2] / "examples" / "recipe.yaml")


def run(*words, cwd=None):
    command = [sys.executable, "-c", "from egpo.cli.main import main; main()", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_version():
    assert run("--version").stdout.strip() == f"egpo {egpo.__version__}"


def test_help_lists_grouped_verbs_each_with_an_example():
    done = CliRunner().invoke(app, ["--help"], terminal_width=120)
    verbs = [command.name or command.callback.__name__ for command in app.registered_commands]
    verbs += [group.name for group in app.registered_groups]
    assert "Set-up" in done.output
    assert "Recipes" in done.output
    for verb in verbs:
        assert f"egpo {verb}" in done.output, f"`egpo --help` shows no example of {verb}"


GROUPS = {"eval": ["bfcl"], "config": ["show", "check", "import", "schema"], "audit": ["rewards", "sandbox"]}
VERBS = [
    "demo",
    "doctor",
    "run",
    "new",
    "probe",
    "plan",
    "train",
    "sft",
    "merge",
    "serve",
    "report",
    "compare",
    "results",
    "eval",
    "config",
    "audit",
]


@pytest.mark.parametrize(
    "words", [[verb] for verb in VERBS] + [[group, verb] for group, verbs in GROUPS.items() for verb in verbs]
)
def test_every_verb_shows_an_example_in_its_own_help(words):
    assert "Example:" in CliRunner().invoke(app, [*words, "--help"]).output


def test_config_show_prints_what_reads_back(tmp_path):
    done = run("config", "show", RECIPE, "update.lr=2e-6")
    assert done.returncode == 0
    assert "lr: 2.0e-06" in done.stdout
    (tmp_path / "again.yaml").write_text(done.stdout)
    assert run("config", "show", str(tmp_path / "again.yaml")).stdout == done.stdout
    assert json.loads(run("config", "show", RECIPE, "--json").stdout)["seed"] == 42


def test_config_show_ends_with_one_newline():
    assert not run("config", "show", RECIPE).stdout.endswith("\n\n")
    assert run("config", "show", RECIPE).stdout.endswith("\n")


def test_a_failure_of_ours_ends_with_code_1(monkeypatch, capsys):
    def fail():
        raise EgpoError("the sandbox broke", where="sandbox", fix="mend it")

    monkeypatch.setattr(cli_main, "app", fail)
    with pytest.raises(SystemExit) as left:
        cli_main.main()
    assert left.value.code == 1
    assert capsys.readouterr().err == "egpo: sandbox: the sandbox broke; mend it\n"


def test_python_m_egpo_is_egpo():
    done = subprocess.run([sys.executable, "-m", "egpo", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"egpo {egpo.__version__}"


def test_a_recipe_may_have_an_equals_sign_in_its_name(tmp_path):
    recipe = tmp_path / "lr=1.yaml"
    recipe.write_text(Path(RECIPE).read_text())
    assert run("config", "check", str(recipe)).returncode == 0


def test_config_check_and_schema():
    assert "valid (egpo on countdown" in run("config", "check", RECIPE).stdout
    assert json.loads(run("config", "schema").stdout)["properties"]["update"]
    report = run("config", "check", RECIPE, "update.lr=x", "--json")
    assert report.returncode == 2
    assert json.loads(report.stdout)["faults"][0]["where"] == "override `update.lr=x`"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["config", "check", "none.yaml"], "egpo: none.yaml: no such file"),
        (["config", "show", RECIPE, "update.lrr=1"], "unknown key `lrr`; did you mean `lr`?"),
        (["config", "check", RECIPE, "algorithm.egpo.alpha=-1"], "`alpha` is -1; it must be greater than 1"),
        (["trian"], "No such command 'trian'"),
        (["config", "check", RECIPE, "--jsn"], "No such option"),
    ],
)
def test_a_mistake_ends_with_a_message_and_code_2(words, message):
    done = run(*words)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "told"), [(["compare"], "if runs differ in other"), (["eval", "bfcl"], "vLLM, or by transformers")]
)
def test_paragraphs_of_help_do_not_break_where_the_source_does(words, told):
    assert told in CliRunner().invoke(app, [*words, "--help"], terminal_width=80).output
