"""`egpo train` as a user meets it."""

import json

import pytest
from typer.testing import CliRunner

from egpo.cli.main import app, main
from tests.local.conftest import model_folder  # noqa: F401  (a fixture)
from tests.local.runs import write_recipe


@pytest.fixture
def recipe(model_folder, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    return write_recipe(tmp_path / "recipe.yaml", model_folder())


@pytest.fixture
def egpo_train(recipe, monkeypatch):
    """Runs the verb on the recipe, and returns the exit code."""

    def call(*words):
        monkeypatch.setattr("sys.argv", ["egpo", "train", str(recipe), *words])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code

    return call


def test_help_shows_an_example_and_the_ways_to_go_on():
    shown = CliRunner().invoke(app, ["train", "--help"], terminal_width=120).output
    assert "Example:" in shown
    assert all(option in shown for option in ("--resume", "--resume-from", "--dry-run"))


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
def test_a_dry_run_shows_what_would_happen_and_keeps_nothing(egpo_train, tmp_path, capsys):
    assert egpo_train("--dry-run", "rollout.prompts=16") == 0
    shown = capsys.readouterr().out
    assert "egpo on tests.local.run_tasks:Sparse, 8 steps of 16 problems x 3 responses" in shown
    assert "25,152 parameters" in shown
    assert "weights 0.1 MiB, gradients 0.1 MiB, optimizer 0.2 MiB" in shown
    assert "<|im_start|>user\nwrite " in shown
    assert "for 2 problems x 3 responses (sample " in shown
    assert "Nothing was kept" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
def test_what_a_model_writes_cannot_steer_the_terminal(egpo_train, capsys):
    """The tiny model writes random bytes, escapes among them."""
    assert egpo_train("--dry-run", "rollout.max_response_tokens=200") == 0
    shown = capsys.readouterr().out
    assert "\\x" in shown
    assert not [letter for letter in shown if not letter.isprintable() and letter != "\n"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["engine=verl", "update.schedule=linear"],
            "egpo: update.schedule: verl has only the schedules `constant` and `cosine`",
        ),
        (["--address", "head:6379"], "egpo: --address: the engine `local` cannot join a Ray cluster"),
        (["update.lrr=1"], "unknown key `lrr`; did you mean `lr`?"),
        (["model.path=./nowhere"], "egpo: model ./nowhere: no such folder; check the path: there is no `nowhere` in "),
        (["task.name=cuontdown"], "did you mean `countdown`?"),
        (["--resume"], "there is no run to resume"),
    ],
)
def test_a_mistake_ends_with_a_message_and_code_2(egpo_train, tmp_path, capsys, words, message):
    assert egpo_train(*words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
def test_json_prints_one_object_a_step_and_nothing_else(egpo_train, tmp_path, capsys):
    assert egpo_train("--json", "steps=2", "name=as-json") == 0
    shown = capsys.readouterr().out
    steps = [json.loads(line) for line in shown.splitlines()]
    assert [one["step"] for one in steps if one["step"]] == [1, 2]
    assert {one["num_steps"] for one in steps} == {2}
    assert "critic/score/mean" in steps[-1]["metrics"]
    assert "timing_s/step" in steps[-1]["timings"]
    written = [json.loads(line) for line in (tmp_path / "runs" / "as-json" / "metrics.jsonl").read_text().splitlines()]
    assert written[-1]["critic/score/mean"] == steps[-1]["metrics"]["critic/score/mean"]


def test_json_of_a_dry_run_is_refused(egpo_train, capsys):
    assert egpo_train("--json", "--dry-run") == 2
    assert "a dry run has no steps" in capsys.readouterr().err
