"""A recipe is given by its name or by a path; the name always means the recipe of the package."""

import json

import pytest
from typer.testing import CliRunner

from egpo.cli.main import app
from egpo.config import load_config
from egpo.errors import ConfigError
from egpo.experiments.new_recipe import write_recipe
from egpo.recipes import RECIPES, recipe_name, recipe_names, recipe_path, shipped_recipes

RUNNER = CliRunner()
OWN = "name: own\nmodel: {path: m}\ntask: {name: countdown}\n"


def test_every_name_means_its_file_and_loads():
    assert {"countdown_tiny", "originals/gsm8k", "cold_start"} <= set(recipe_names())
    for name in recipe_names():
        assert recipe_path(name) == RECIPES / f"{name}.yaml"
        assert recipe_name(name) == recipe_name(RECIPES / f"{name}.yaml") == name
    assert load_config("countdown_tiny") == load_config(RECIPES / "countdown_tiny.yaml")


def test_a_file_of_the_working_directory_needs_its_suffix_or_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("countdown_tiny", "countdown_tiny.yaml"):
        (tmp_path / name).write_text(OWN)
    assert load_config("countdown_tiny").name == "countdown-tiny-grpo"
    for word in ("countdown_tiny.yaml", "./countdown_tiny.yaml", str(tmp_path / "countdown_tiny")):
        assert load_config(word).name == "own"


def test_a_recipe_includes_another_by_name(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("include: countdown_tiny\nname: mine\nsteps: 3\n")
    assert load_config(path) == load_config("countdown_tiny", ["name=mine", "steps=3"])


def test_a_new_recipe_includes_by_name_and_the_default_is_the_first_to_try(tmp_path):
    made = write_recipe(tmp_path / "mine")
    assert made.read_text() == f"# egpo run {made}\ninclude: countdown_tiny\nname: mine\n"
    other = write_recipe(tmp_path / "other", "originals/gsm8k")
    assert "include: originals/gsm8k\n" in other.read_text()


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("countdown_tny", "did you mean `countdown_tiny`, a recipe of the package?"),
        ("recipes/countdown_tiny.yaml", "did you mean `countdown_tiny`, a recipe of the package?"),
        ("countdown-tiny", "did you mean `countdown_tiny`, a recipe of the package?"),
        ("mien.yaml", "did you mean `mine.yaml`?"),
        ("mine", "did you mean `mine.yaml`?"),
        ("zzz", "check the path; `egpo recipes` lists the recipes of the package"),
    ],
)
def test_a_mistyped_recipe_gets_the_nearest_file_or_name(word, advice, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(OWN)
    with pytest.raises(ConfigError) as caught:
        load_config(word)
    assert str(caught.value) == f"{word}: no such file; {advice}"


def test_recipes_are_listed_with_one_line_each():
    done = RUNNER.invoke(app, ["recipes"])
    lines = done.output.splitlines()
    assert [line.split()[0] for line in lines] == recipe_names()
    (line,) = [line for line in lines if line.startswith("countdown ")]
    assert line.endswith("GRPO on the public Countdown dataset with Qwen3-4B (eight GPUs of 80 GB)")
    listed = json.loads(RUNNER.invoke(app, ["recipes", "--json"]).output)
    assert [one["name"] for one in listed] == recipe_names()
    assert all(one.summary for one in shipped_recipes())
