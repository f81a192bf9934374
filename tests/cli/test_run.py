"""`egpo run` and `egpo new` as a user meets them."""

import json
import subprocess
import sys
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from egpo.cli.main import app, main

RECIPE = "model: {path: egpo-tiny}\ntask: {name: countdown}\nsteps: 3\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with a recipe, and no machine file but its own."""
    monkeypatch.delenv("EGPO_MACHINE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


@pytest.fixture
def egpo(here, monkeypatch, capsys):
    """Runs a verb: its exit code, and what it said."""

    def call(*words):
        monkeypatch.setattr("sys.argv", ["egpo", *words])
        with pytest.raises(SystemExit) as left:
            main()
        shown = capsys.readouterr()
        return Left(left.value.code or 0, shown.out, " ".join(shown.err.split()))

    return call


class Left(NamedTuple):
    code: int
    out: str
    err: str


@pytest.mark.parametrize("verb", ["run", "new"])
def test_help_shows_an_example(verb):
    assert "Example:" in CliRunner().invoke(app, [verb, "--help"], terminal_width=120).output


def test_a_dry_run_says_what_would_be_done_and_does_nothing(egpo, here):
    done = egpo("run", "recipe.yaml", "steps=5", "--seeds", "0,1", "--dry-run")
    assert done.code == 0
    assert "run-s0: recipe.yaml -> runs/run-s0" in done.out
    assert "5 steps of 16 problems x 8 responses" in done.out
    assert [path.name for path in here.iterdir()] == ["recipe.yaml"]


def test_a_dry_run_with_verl_shows_its_command(egpo):
    done = egpo("run", "recipe.yaml", "engine=verl", "verl.gpus=4", "--dry-run")
    assert "-m verl.trainer.main_ppo" in done.out
    assert "trainer.n_gpus_per_node=4" in done.out


def test_new_writes_a_recipe_that_runs(egpo):
    assert egpo("new", "mine", "--from", "recipe.yaml", "steps=2").out.strip() == "mine.yaml"
    shown = egpo("run", "mine.yaml", "--dry-run", "--only", "train").out
    assert "2 steps" in shown
    assert "probe" not in shown


def test_config_show_says_where_a_setting_comes_from(egpo):
    shown = egpo("config", "show", "recipe.yaml", "seed=4", "--origins").out
    assert "steps=3" in shown
    assert "# recipe.yaml:3" in shown
    assert "# override `seed=4`" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "none.yaml"], "none.yaml: no such file"),
        (["run", "steps=3"], "no recipe is given; name at least one"),
        (["run", "recipe.yaml", "--only", "trian"], "unknown stage `trian`; did you mean `train`?"),
        (["run", "recipe.yaml", "--only", "train", "--from", "eval"], "--only and --from cannot be combined"),
        (["run", "recipe.yaml", "--seeds", "a"], "--seeds: `a` is not a list of whole numbers"),
        (["run", "recipe.yaml", "recipe.yaml", "--dry-run"], "two experiments would write to runs/run"),
        (["new", "x", "--from", "recip.yaml"], "the recipe does not exist; did you mean `recipe.yaml`?"),
        (["new", "recipe", "--from", "recipe.yaml"], "recipe.yaml: the file exists already"),
        (["train", "recipe.yaml", "prepare.source=a/b"], "`a/b` is not prepared yet; egpo run recipe.yaml --only"),
        (["probe", "recipe.yaml", "prepare.source=a/b"], "`a/b` is not prepared yet; egpo run recipe.yaml --only"),
    ],
)
def test_a_mistake_ends_with_a_message_and_code_2(egpo, words, message):
    done = egpo(*words)
    assert done.code == 2
    assert message in done.err


def test_an_unknown_base_model_ends_with_code_2_before_anything_is_prepared(egpo, here):
    """In this process: nothing is asked of the hub for what looks like a path."""
    done = egpo("run", "recipe.yaml", "model.path=./no/model", "--only", "prepare,train")
    assert done.code == 2
    assert "model ./no/model: no such folder" in done.err
    assert not (here / "runs").exists()


def test_a_machine_file_with_a_wrong_path_ends_with_code_2(egpo, here):
    (here / "egpo.machine.yaml").write_text("models: [nowhere]\n")
    done = egpo("run", "recipe.yaml", "--dry-run")
    assert done.code == 2
    assert "egpo.machine.yaml:1: the folder " in done.err


def test_a_dry_run_imports_neither_torch_nor_transformers(here):
    code = (
        "import sys; sys.argv = ['egpo', 'run', 'recipe.yaml', 'engine=verl', '--dry-run']\n"
        "from egpo.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "assert not {'torch', 'transformers', 'ray', 'verl'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=here, capture_output=True)


SMALLEST = ["steps=1", "rollout.prompts=2", "rollout.n=2", "validation.problems=2", "task.settings.train=8",
            "task.settings.test=4", "rollout.max_response_tokens=64"]  # fmt: skip


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
def test_json_prints_one_object_a_step_and_messages_go_to_stderr(egpo):
    done = egpo("run", "recipe.yaml", *SMALLEST, "--only", "prepare,train", "--json")
    assert done.code == 0, done.err
    assert [json.loads(line)["step"] for line in done.out.splitlines()] == [0, 1]
    assert "train: at step 1" in done.err
