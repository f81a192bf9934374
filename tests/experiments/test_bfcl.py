"""BFCL as a part of the evaluation: planned from the recipe, and its files found again."""

import sys
from pathlib import Path

import pytest

from egpo.evals.bfcl.environment import VARIABLE as EGPO_BFCL_PYTHON
from egpo.evals.bfcl.environment import bfcl_python
from egpo.evals.bfcl.job import Asked
from egpo.evals.bfcl.run import Wanted, _name
from egpo.evals.bfcl.targets import Target
from egpo.experiments.loading import load_experiments
from egpo.experiments.models import place_of
from egpo.experiments.screen import plain_screen
from egpo.experiments.stages.bfcl import bfcl_jobs

WORDS = ["eval.bfcl={categories: [simple_python, multi_turn_base], runs: 2}"]


@pytest.fixture
def experiment(recipe):
    (found,) = load_experiments([str(recipe)], WORDS)
    model = found.trained_model
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    return found


def jobs_of(experiment):
    return bfcl_jobs(experiment, plain_screen(lambda line: None))


def test_each_model_is_asked_and_only_the_base_is_shared(experiment):
    base, trained = jobs_of(experiment)
    assert (base.name, base.shared) == ("bfcl: base", True)
    assert (trained.name, trained.shared) == ("bfcl: trained", False)
    assert base.inputs["bfcl"] == trained.inputs["bfcl"]
    assert base.inputs["model"] != trained.inputs["model"]


def test_the_files_that_it_writes_are_the_jobs_outputs(experiment):
    evals = experiment.run.evals
    evals.mkdir(parents=True)
    written = {}
    for which, out in (("base", evals), ("trained", None)):
        place = place_of(experiment, which)
        asked = Asked("", "", "x", ("simple_python", "multi_turn_base"))
        name = _name(Target(place.label, "x", place=place), asked, Wanted(out=out))
        written[which] = [evals / f"{name}.json", evals / f"{name}.jsonl"]
        for path in written[which]:
            path.write_text("{}")
        (evals / f"{name}.bfcl").mkdir()
    base, trained = jobs_of(experiment)
    assert base.outputs() == written["base"]
    assert trained.outputs() == written["trained"]


def test_an_unknown_category_is_named_before_anything_is_asked(recipe):
    (found,) = load_experiments([str(recipe)], ["eval.bfcl={categories: [multi_turn_bse]}", "eval.models=[base]"])
    with pytest.raises(ValueError, match="multi_turn_bse"):
        jobs_of(found)
    assert not Path("runs").exists()


def test_its_interpreter_may_be_the_machines(tmp_path, monkeypatch):
    monkeypatch.delenv(EGPO_BFCL_PYTHON, raising=False)
    (tmp_path / "machine.yaml").write_text(f"environments: {{bfcl: {sys.executable}}}\n")
    monkeypatch.setenv("EGPO_MACHINE", str(tmp_path / "machine.yaml"))
    assert bfcl_python(offline=True) == Path(sys.executable)
