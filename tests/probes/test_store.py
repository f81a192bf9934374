"""What a probe leaves on disk: read by the report, drawn as a picture, in the place where it belongs."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from egpo.config import Config, config_to_yaml
from egpo.config.schema import Model, Task
from egpo.errors import InputError
from egpo.evals.evaluate import Origin
from egpo.evals.responses import read_samples
from egpo.probes.store import picture, write_probe
from egpo.probes.subject import find_subject
from egpo.reports import write_report
from egpo.runs import RunFolder
from tests.local.conftest import model_folder  # noqa: F401  (a fixture)
from tests.probes.scripted import probed

RECIPE = Config(model=Model(path="some/base"), task=Task(name="countdown", settings={"max_numbers": 3}), name="r")


def test_the_report_of_a_run_that_was_probed_first_shows_its_pass_rates(tmp_path):
    run = RunFolder(tmp_path / "run")
    write_probe(run.evals, probed([0, 1, 2, 2], n=2), Origin("base"))
    with RunFolder.create(run.path, "name: run\nsteps: 10\n"):
        pass
    page = write_report([run.path]).read_text()
    assert "4 prompts by their share of correct responses; 25% are solved sometimes" in page
    assert 'id="evaluation"' not in page  # a probe of training problems is no evaluation


def test_figures_and_responses_are_written_whole(tmp_path):
    outcome = probed([1, 2, 0], n=2)
    path = write_probe(tmp_path / "new", outcome, Origin("base", 3))
    value = json.loads(path.read_text())
    assert value["pass_rates"] == {"train 0": 0.5, "train 1": 1.0, "train 2": 0.0}
    assert [one["group_size"] for one in value["forecasts"]] == [2, 4, 8, 16, 32, 64]
    assert value["forecasts"][0]["informative"]["value"] == pytest.approx(1 / 3)
    assert value["evaluation"]["split"] == "train"
    assert (value["evaluation"]["model"], value["evaluation"]["step"]) == ("base", 3)
    assert tuple(read_samples(path.with_suffix(".jsonl"))) == outcome.evaluation.samples
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["probe.json", "probe.jsonl", "probe.svg"]


def test_the_picture_is_xml_whatever_the_model_is_called():
    outcome = probed([1, 2, 0], n=2)
    named = replace(outcome, evaluation=replace(outcome.evaluation, label='<b>&"\x00\ud800'))
    root = ElementTree.fromstring(picture(named).encode())
    kinds = [element.get("class") for element in root]
    assert kinds.count("edge") == 2
    assert kinds.count("bar") == 10
    assert kinds.count("dot") == 1
    assert kinds.count("fit") == 5
    assert kinds.count("ring") == 1


def test_the_outcome_belongs_to_the_recipes_run_or_here_or_where_it_is_said():
    assert find_subject(RECIPE).folder == Path("runs/r/evals")
    assert find_subject(model="m", task="countdown").folder == Path("evals")
    assert find_subject(RECIPE, out=Path("there")).folder == Path("there")


def test_a_run_brings_its_task_and_its_sampling(tmp_path):
    run = RunFolder(tmp_path / "run")
    actor = run.checkpoint_of(7) / "actor" / "huggingface"
    actor.mkdir(parents=True)
    run.config.write_text(config_to_yaml(RECIPE))
    found = find_subject(model=str(run.path))
    assert (found.config.model.path, found.origin.step, found.folder) == (str(actor), 7, run.evals)
    assert found.config.task.settings == {"max_numbers": 3}
    assert found.max_tokens == RECIPE.rollout.max_response_tokens


def test_what_is_said_goes_before_the_recipe():
    found = find_subject(RECIPE, model="other", settings={"max_number": 9}, device="cpu").config
    assert (found.model.path, found.model.device) == ("other", "cpu")
    assert found.task.settings == {"max_numbers": 3, "max_number": 9}
    assert find_subject(RECIPE, task="gsm8k").config.task == Task(name="gsm8k")
    assert find_subject(model="m", task="gsm8k").max_tokens is None


@pytest.mark.parametrize(
    ("given", "message"), [({}, "give a recipe, or --model and --task"), ({"model": "m"}, "as in --task countdown")]
)
def test_too_little_to_go_on(given, message):
    with pytest.raises(InputError, match=message):
        find_subject(**given)


def test_a_probe_samples_as_the_recipe_says(model_folder):  # noqa: F811
    rollout = RECIPE.rollout.model_copy(update={"stop": ("!",), "max_prompt_tokens": 7})
    recipe = RECIPE.model_copy(update={"rollout": rollout})
    loaded = find_subject(recipe, model=str(model_folder()), device="cpu").load()
    assert (loaded.stop, loaded.max_prompt_tokens) == (("!",), 7)
