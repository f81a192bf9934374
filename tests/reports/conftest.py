"""A browser for the whole session, and runs that were really trained."""

import warnings

import pytest

from egpo.errors import EgpoWarning
from tests.reports.chromium import find_chromium, started_browser

MISSING = "no Chromium: `make system` as root installs it (Debian, Ubuntu: apt-get install chromium)"


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    if find_chromium() is None:
        pytest.skip(MISSING)
    with started_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="session")
def trained_runs(tmp_path_factory):
    """Two runs of the embedded engine, a few steps each."""
    from egpo.config import load_config
    from egpo.local.train import train
    from tests.local.conftest import build_model, build_tokenizer
    from tests.local.runs import write_recipe

    place = tmp_path_factory.mktemp("trained")
    build_model("qwen3").save_pretrained(place / "model")
    build_tokenizer().save_pretrained(place / "model")
    recipe = write_recipe(place / "recipe.yaml", place / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EgpoWarning)  # a model that writes random bytes has no thinking, and says so
        for name in ("grpo", "egpo"):
            overrides = [f"name={name}", f"algorithm.estimator={name}", f"runs={place / 'runs'}", "steps=4"]
            train(load_config(recipe, overrides))
    return [place / "runs" / name for name in ("grpo", "egpo")]
