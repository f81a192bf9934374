"""`egpo sft` from the command line."""

import json

import pytest
from typer.testing import CliRunner

from egpo.cli.main import app
from tests.local.conftest import model_folder  # noqa: F401

ROWS = [
    {"messages": [{"role": "user", "content": "hi\x1b[2J"}, {"role": "assistant", "content": "yo [bold]x[/bold]"}]},
    {"messages": [{"role": "user", "content": "nobody answers"}]},
]


@pytest.fixture
def recipe(model_folder, tmp_path):  # noqa: F811
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    model, data = f"{{path: {model_folder()}, device: cpu}}", f"{{path: {tmp_path}/rows.jsonl}}"
    (tmp_path / "recipe.yaml").write_text(f"runs: {tmp_path}/runs\nmodel: {model}\ndata: {data}\n")
    return str(tmp_path / "recipe.yaml")


def run(*words):
    return CliRunner().invoke(app, ["sft", *words], catch_exceptions=False)


def test_a_dry_run_shows_an_example_and_keeps_nothing(recipe, tmp_path):
    shown = run(recipe, "--dry-run")
    assert shown.exit_code == 0
    assert "⟦yo [bold]x[/bold]<|im_end|>⟧" in shown.output
    assert "no assistant turn after another message" in shown.output
    assert "\x1b[2J" not in shown.output
    assert not (tmp_path / "runs").exists()


def test_a_run_and_its_resumption(recipe, tmp_path):
    assert run(recipe, "name=a", "epochs=2").exit_code == 0
    assert (tmp_path / "runs/a/checkpoints/global_step_2/actor/huggingface/model.safetensors").exists()
    again = run(f"{tmp_path}/runs/a/config.yaml", "--resume")
    assert again.exit_code == 0
    assert "all 2 steps were done before" in again.output


def test_json_prints_one_object_a_step_and_nothing_else(recipe):
    done = run(recipe, "name=as-json", "epochs=2", "--json")
    assert done.exit_code == 0
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["step"] for one in steps if one["step"]] == [1, 2]
    assert "train/loss" in steps[-1]["metrics"]
