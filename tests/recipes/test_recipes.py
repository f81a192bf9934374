"""Every recipe loads, says how it is launched, and names a task that can be made."""

from pathlib import Path

import pytest

from egpo.config import Config, load_config, load_recipe
from egpo.demos.plan import RECIPE
from egpo.tasks import load_task

REPOSITORY = Path(__file__).parents[2]
RECIPES = sorted((REPOSITORY / "recipes").rglob("*.yaml"))


def test_there_are_recipes():
    assert len(RECIPES) >= 5


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_loads_and_its_first_line_launches_it(recipe):
    config = load_recipe(recipe)
    launch = recipe.read_text().splitlines()[0]
    verb = "train" if isinstance(config, Config) else "sft"
    assert launch.startswith("# ")
    assert f"egpo {verb} {recipe.relative_to(REPOSITORY)}" in launch


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_the_task_of_a_recipe_has_problems(recipe):
    config = load_recipe(recipe)
    if isinstance(config, Config):
        task = load_task(config.task.name, **config.task.settings)
        assert len(task.problems("train")) >= config.rollout.prompts
        assert len(task.problems("test")) >= config.validation.problems


def test_the_demo_is_the_countdown_recipe():
    ours, theirs = (
        load_config(path, ["name=same", "steps=1"]) for path in (RECIPE, REPOSITORY / "recipes/countdown_tiny.yaml")
    )
    assert ours == theirs
