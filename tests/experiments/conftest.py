"""A recipe whose every stage takes a fraction of a second: a random model that writes random bytes."""

import pytest

from egpo.experiments.pipeline import run_stages
from egpo.experiments.screen import plain_screen
from egpo.experiments.stages import Selection
from egpo.experiments.validate import load_experiments
from tests.local.conftest import model_folder  # noqa: F401  (a fixture)

RECIPE = """
name: tiny
steps: 2
model: {{path: {model}, device: cpu}}
task: {{name: countdown, settings: {{train: 12, test: 6, max_numbers: 3}}}}
rollout: {{prompts: 2, n: 2, max_response_tokens: 6}}
update: {{lr: 1e-3}}
checkpoints: {{every: 1, keep_last: 1, keep_best: 0}}
validation: {{every: 0}}
probe: {{problems: 3, n: 2}}
eval: {{n: 2}}
"""


@pytest.fixture
def recipe(model_folder, tmp_path, monkeypatch):  # noqa: F811
    """Its path, in a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(model=model_folder()))
    return path


@pytest.fixture
def run_recipe(recipe):
    """Runs it with overrides, and gives what was said, without the indentation."""

    def run(*overrides, only=(), start=None):
        (experiment,) = load_experiments([str(recipe)], overrides)
        said = []
        run_stages(experiment, Selection.of(only, start), plain_screen(said.append))
        return [line.strip() for line in said]

    return run
