"""The methods of the board: every one is a recipe that loads, and says what it changes."""

import json
import re

import pytest

from egpo.config import load_config
from egpo.methods import METHODS

WORDS = ["model.path=egpo-tiny", "task.name=countdown"]
NAMES = {
    *("grpo", "egpo", "egpo_calibrated", "egpo_calibrated_recovery", "token_entropy", "high_entropy", "edge", "gtpo"),
    *("grpo_s", "qae", "clip_cov", "kl_cov", "adaptive_entropy", "canon", "rloo", "dr_grpo", "dapo", "gspo", "cispo"),
    *("tis", "pass_at_k", "random_reward"),
}


def test_the_names_of_the_board():
    assert set(METHODS) == NAMES


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_a_recipe_that_loads(name):
    method = METHODS[name]
    config = load_config(overrides=[*WORDS, *(f"{key}={json.dumps(value)}" for key, value in method.settings.items())])
    config.algorithm.check_estimator()
    config.update.check_names()
    for key, value in method.settings.items():
        found = config
        for part in key.split("."):
            found = getattr(found, part)
        assert found == value, key


def test_no_two_methods_are_the_same_recipe():
    settings = [tuple(sorted(method.settings.items())) for method in METHODS.values()]
    assert len(set(settings)) == len(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_what_it_changes(name):
    method = METHODS[name]
    assert method.about
    assert re.fullmatch(r"(arXiv:\d{4}\.\d{5})?", method.paper)
    assert len(method.changes) != 1, "one change is the description"
    if len(method.settings) > 1 and name != "adaptive_entropy":
        assert len(method.changes) > 1
