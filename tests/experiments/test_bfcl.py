"""BFCL as a part of the evaluation: planned from the recipe, asked of each model once, compared at the end."""

import json
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import egpo.evals.bfcl.evaluate_bfcl as bfcl_run
from egpo.assets import resolve_model
from egpo.data.conversations import INSTRUCTION
from egpo.environments.bfcl.interpreter import VARIABLE as EGPO_BFCL_PYTHON
from egpo.environments.bfcl.interpreter import bfcl_python
from egpo.errors import ConfigError, InputError
from egpo.evals.bfcl.targets import RunningServer
from egpo.experiments.bfcl import _call, bfcl_exam, bfcl_jobs, downloaded
from egpo.experiments.pipeline import run_experiments, run_stages
from egpo.experiments.screen import plain_screen
from egpo.experiments.stages import Selection
from egpo.experiments.validate import load_experiments
from tests.evals.bfcl.gold_server import Golds, serving

WORDS = ["eval.bfcl={categories: [simple_python, multi_turn_base], runs: 2}"]
ENVIRONMENT = Path(__file__).resolve().parents[2] / ".env-bfcl"


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


def test_how_many_are_under_way_at_once_changes_nothing(experiment, recipe):
    (other,) = load_experiments([str(recipe)], [*WORDS, "eval.bfcl.threads=3"])
    assert [job.inputs for job in jobs_of(other)] == [job.inputs for job in jobs_of(experiment)]


def test_another_length_of_answers_is_another_exam(experiment, recipe):
    (other,) = load_experiments([str(recipe)], [*WORDS, "eval.bfcl.max_tokens=16384"])
    assert all(job.inputs["bfcl"] != jobs_of(experiment)[0].inputs["bfcl"] for job in jobs_of(other))
    assert bfcl_exam(other) == f"{bfcl_exam(experiment)}-max16384"


TOOLS = ["task={name: function_calling, settings: {train: 12, test: 6}}"]


def calls_of(recipe, *words):
    (experiment,) = load_experiments([str(recipe)], [*WORDS, *words])
    experiment.trained_model.mkdir(parents=True, exist_ok=True)
    (experiment.trained_model / "config.json").write_text("{}")
    return [_call(experiment, experiment.config.eval.bfcl, which) for which in ("base", "trained")]


def test_a_model_is_asked_in_the_way_in_which_it_was_trained(recipe):
    run = load_experiments([str(recipe)], [*WORDS, *TOOLS])[0]
    run_stages(run, Selection.of(["prepare"], None), plain_screen(lambda line: None))
    for call in calls_of(recipe, *TOOLS):
        assert (call.asked.prompt_format, call.asked.instruction) == ("template", INSTRUCTION)
    for call in calls_of(recipe, "task={name: function_calling, settings: {train: 12, instruction: Call tools.}}"):
        assert (call.asked.prompt_format, call.asked.instruction) == ("template", "Call tools.")


def test_after_a_training_without_tools_it_is_asked_as_on_the_leaderboard(recipe):
    for call in calls_of(recipe):
        assert (call.asked.prompt_format, call.asked.instruction, call.asked.temperature) == ("qwen_fc", "", 0.001)


def test_a_recipe_chooses_format_instruction_temperature_and_length(recipe):
    words = ["eval.bfcl.format=template", "eval.bfcl.instruction=Be brief.", "eval.bfcl.temperature=0.7"]
    for call in calls_of(recipe, *TOOLS, *words, "eval.bfcl.max_tokens=16384"):
        asked = call.asked
        assert (asked.prompt_format, asked.instruction, asked.temperature) == ("template", "Be brief.", 0.7)
        assert asked.max_tokens == 16384
    for call in calls_of(recipe, *TOOLS, "eval.bfcl.format=qwen"):
        assert (call.asked.prompt_format, call.asked.instruction) == ("qwen", "")
    with pytest.raises(ConfigError, match="format `llama` has no place for an instruction"):
        calls_of(recipe, "eval.bfcl.format=llama", "eval.bfcl.instruction=Be brief.")


def test_another_instruction_is_another_exam(recipe):
    digests = {
        job.inputs["bfcl"]
        for words in ([], ["eval.bfcl.instruction=Be brief."], ["eval.bfcl.temperature=0.7"])
        for job in jobs_of(load_experiments([str(recipe)], [*WORDS, "eval.models=[base]", *words])[0])
    }
    assert len(digests) == 3


def test_no_category_is_no_wish(recipe):
    with pytest.raises(ConfigError, match="`categories` is"):
        load_experiments([str(recipe)], ["eval.bfcl={categories: []}"])


def test_its_interpreter_may_be_the_machines(tmp_path, monkeypatch):
    monkeypatch.delenv(EGPO_BFCL_PYTHON, raising=False)
    (tmp_path / "machine.yaml").write_text(f"environments: {{bfcl: {sys.executable}}}\n")
    monkeypatch.setenv("EGPO_MACHINE", str(tmp_path / "machine.yaml"))
    assert bfcl_python(offline=True) == Path(sys.executable)


def test_a_model_of_the_hub_is_a_folder_once_it_is_here(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert downloaded(str(tmp_path)) == str(tmp_path)
    for name in ("some/model", "no model at all"):
        with pytest.raises(
            InputError, match=f"model {name}: the model is not on this machine, and cannot be downloaded from the hub"
        ):
            downloaded(name)


@pytest.mark.skipif(not (ENVIRONMENT / ".ready").is_file(), reason="BFCL's environment is not made")
@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
def test_two_recipes_are_asked_by_the_official_evaluator_and_compared(recipe, monkeypatch):
    """The server alone is another: it answers with BFCL's own ground truth."""
    monkeypatch.setenv(EGPO_BFCL_PYTHON, str(ENVIRONMENT / "bin" / "python"))
    settings = "{train: 12, test: 6, max_turns: 1, max_tools: 2, describe_tools: false}"
    task = f"task={{name: function_calling, settings: {settings}}}"
    recipe.with_name("other.yaml").write_text("include: recipe.yaml\nname: other\nalgorithm: {estimator: egpo}\n")
    words = [f"model.path={resolve_model('egpo-tiny')}", task, "eval.greedy=false", "eval.n=1"]
    words += ["eval.bfcl={categories: [live_parallel], runs: 1}", "steps=1"]
    experiments = load_experiments([str(recipe), "other.yaml"], words)
    said = []
    with serving(Golds(["live_parallel"]).answer) as (url, prompts):

        @contextmanager
        def gold(target, max_model_len=None, *args):
            yield RunningServer(url, "gold")

        monkeypatch.setattr(bfcl_run, "running_server", gold)
        run_experiments(experiments, Selection(), plain_screen(said.append))
        asked = len(prompts)
        run_experiments(experiments, Selection(), plain_screen(lambda line: None))
        assert len(prompts) == asked == 3 * 16
    # Asked as it was trained: where the prompts differ, the line says in what.
    assert said.count("  bfcl: trained: 100.0% over one pass") == 2, said
    assert "  bfcl: base: copied from runs/tiny" in said
    exam = bfcl_exam(experiments[0])
    assert any(line.startswith(f"{exam}: ") and "not distinguishable" in line for line in said), said
    for run in ("tiny", "other"):
        files = {path.name for path in Path(f"runs/{run}/evals").glob("bfcl-*.json*")}
        assert {f"{exam}-step1.json", f"{exam}-step1.jsonl"} < files
        assert len(files) == 4
    assert json.loads(Path(f"runs/other/evals/{exam}-step1.json").read_text())["accuracy"]["value"] == 1.0
