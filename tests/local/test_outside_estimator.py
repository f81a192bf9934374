"""An estimator is its own file and one name: nothing of the package is edited to run it on either engine."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from egpo.advantages import ESTIMATORS, Signals, estimator_named, explain, grpo
from egpo.config import load_config
from egpo.errors import ConfigError, InputError
from egpo.local.collect import collect
from egpo.local.measure import estimate, measure
from egpo.local.step import step
from egpo.runs.folder import RunFolder
from egpo.verl.launch.layout import VerlPlaces
from egpo.verl.launch.problems import planned_files
from egpo.verl.launch.translation import translate
from egpo.verl.settings import read_settings
from tests.local.outside_estimators import damped
from tests.local.test_step import opened
from tests.verl.batches import feed_for, keys_of
from tests.verl.launch.recipes import small

DAMPED, SCALED = "tests.local.outside_estimators:damped", "tests.local.outside_estimators:scaled"
SIGNALS = Signals([1.0, 0.0, 1.0, 0.0], ["a"] * 4, entropy_B=[0.2, 0.4, 2.0, float("nan")])

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*neither.*:egpo.errors.EgpoWarning", "ignore:.*under `pass_at_k`.*:egpo.errors.EgpoWarning"
)


def test_every_row_of_the_table_is_callable_and_says_what_it_measures():
    signals = replace(SIGNALS, correct_B=torch.tensor([True, False, True, False]))
    mask_BT = torch.tensor([[True, True], [True, False], [True, True], [False, False]])
    entropy_BT = torch.rand(4, 2)
    for name, row in ESTIMATORS.items():
        tables = (entropy_BT, mask_BT) if row.level == "token" else ()
        found = row(signals, *tables)
        assert torch.equal(found, row.function(signals, *tables))
        assert found.shape == (mask_BT.shape if row.level == "token" else (4,))
        without = {"grpo", "rloo", "qae", "pass_at_k"} | {
            n for n, other in ESTIMATORS.items() if other.level == "token"
        }
        assert (row.segment is None) == (name in without)


def test_an_estimator_from_outside_is_found_by_its_name():
    assert estimator_named(DAMPED) is damped
    expected_B = grpo(SIGNALS) * torch.tensor([0.9, 0.8, 0.5, 1.0])
    assert torch.allclose(estimator_named(DAMPED)(SIGNALS), expected_B)
    assert explain(DAMPED, SIGNALS)["damped/weight/mean"] == pytest.approx(0.8)
    assert torch.equal(estimator_named(SCALED)(SIGNALS, factor=3.0, normalize=True, metrics={}), grpo(SIGNALS) * 3)


@pytest.mark.parametrize("name", [f"{SCALED}s", "no_such_module:f", "tests.local.outside_estimators:"])
def test_a_name_that_leads_nowhere_is_one_line(name):
    with pytest.raises(InputError, match="estimator"):
        estimator_named(name)


def recipe(*overrides):
    return load_config(overrides=["model.path=egpo-tiny", "task.name=countdown", *overrides]).algorithm


def test_its_settings_are_checked_by_its_own_class():
    chosen = recipe(f"algorithm.estimator={DAMPED}", "algorithm.estimator_settings.strength=0.25")
    assert chosen.settings == {"normalize": True, "strength": 0.25}
    assert chosen.segment == "answer"
    with pytest.raises(ConfigError, match="`strength` is 2; it must be less than or equal to 1"):
        _ = recipe(f"algorithm.estimator={DAMPED}", "algorithm.estimator_settings.strength=2").settings
    with pytest.raises(ConfigError, match="did you mean `strength`"):
        _ = recipe(f"algorithm.estimator={DAMPED}", "algorithm.estimator_settings.strenght=1").settings
    with pytest.raises(ConfigError, match="`estimator` is `nope`"):
        recipe("algorithm.estimator=nope")
    with pytest.raises(ConfigError, match="not used by the built-in estimator `egpo`"):
        recipe("algorithm.estimator=egpo", "algorithm.estimator_settings.lam=1")


@pytest.mark.parametrize(("name", "settings"), [(DAMPED, "strength=0.5"), (SCALED, "factor=3.0")])
def test_it_trains_on_the_embedded_engine(model_folder, name, settings):
    words = [f"algorithm.estimator={name}", f"algorithm.estimator_settings.{settings}"]
    run = opened(model_folder, *words)
    batch = collect(run, 0)
    measures = measure(run.policy, batch.rollouts, run.config.segments.tags)
    algorithm = run.config.algorithm
    found = estimate(batch, measures, algorithm)
    kept_B = batch.kept_B
    signals = Signals(
        batch.reward_B[kept_B], batch.rollouts.problem_B[kept_B], entropy_B=measures.entropy[algorithm.segment][kept_B]
    )
    expected_B = estimator_named(name)(signals, **algorithm.settings)
    assert torch.equal(found.advantage_B[kept_B], expected_B)
    assert not torch.equal(found.advantage_B[kept_B], ESTIMATORS["grpo"](signals))
    outcome = step(opened(model_folder, *words), 0)
    assert ("damped/weight/mean" in outcome.metrics) == (name == DAMPED)


@pytest.mark.parametrize(("name", "settings"), [(DAMPED, "strength=0.25"), (SCALED, "factor=3.0")])
def test_it_computes_the_same_on_verl(name, settings):
    """From the recipe through verl's keys to the estimator that the trainer calls."""
    config = small(f"algorithm.estimator={name}", f"algorithm.estimator_settings.{settings}")
    places = VerlPlaces(RunFolder(Path(config.runs) / config.name))
    section = {"egpo": {}}
    for setting in translate(config, places, planned_files(config, places), 0):
        if setting.key.startswith("algorithm.egpo."):
            section["egpo"][setting.key.removeprefix("algorithm.egpo.")] = setting.value
        elif setting.key.startswith("algorithm."):
            section[setting.key.removeprefix("algorithm.")] = setting.value
    read = read_settings(section)
    assert (read.estimator, read.arguments, read.segment) == (name, config.algorithm.settings, config.algorithm.segment)
    assert read.ours
    feed, reward_B = feed_for(keys_of(2, 4)), torch.rand(8)
    found_B = feed.advantages(name, reward_B, **read.arguments)
    signals = Signals(reward_B, torch.arange(8) // 4, entropy_B=feed.measures.entropy["thinking"])
    assert torch.equal(found_B, estimator_named(name)(signals, **config.algorithm.settings))
