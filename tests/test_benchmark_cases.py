"""Cases that a model was trained on go with it, from the cold start to the merged model, and are not evaluated."""

import json
import shutil
from pathlib import Path

import pytest

from egpo.assets import resolve_model
from egpo.benchmark_cases import FILE, cases_in_rows, joined_cases, read_cases, write_cases
from egpo.config import load_config
from egpo.errors import InputError
from egpo.evals.bfcl.categories import first_cases, in_categories
from egpo.evals.bfcl.evaluate_bfcl import BfclOptions, evaluate_bfcl
from egpo.evals.bfcl.passes import BfclSettings
from egpo.evals.bfcl.targets import find_target
from egpo.evals.bfcl.verdicts import LEFT_OUT
from egpo.evals.evaluate import read_evaluation
from egpo.experiments.pipeline import run_experiments
from egpo.experiments.screen import plain_screen
from egpo.experiments.stages import Selection
from egpo.experiments.validate import load_experiments
from egpo.local.train import train
from egpo.merges.merge import merge
from egpo.runs.provenance import read_provenance
from egpo.tasks import load_task
from tests.bfcl.cases import ENVIRONMENT, PYTHON
from tests.evals.bfcl.gold_server import Golds, serving

needs_bfcl = pytest.mark.skipif(not (ENVIRONMENT / ".ready").is_file(), reason="BFCL's environment is not made")
TINY = resolve_model("egpo-tiny")
RECIPE = """
name: tiny-bfcl
steps: 1
model: {path: egpo-tiny}
task:
  name: bfcl
  settings: {train: 6, test: 4, description_chars: 0, tokenizer: egpo-tiny, max_prompt_tokens: 300,
             max_answer_tokens: 64}
cold_start: {problems: 4, thinking: true, batch_tokens: 2048}
rollout: {prompts: 2, n: 2, max_response_tokens: 8}
validation: {every: 0}
eval: {problems: 2, n: 1, greedy: false, tasks: [{name: bfcl_unseen}]}
"""


def test_cases_are_joined_and_written_in_one_order(tmp_path):
    cases = joined_cases({"bfcl": ["b", "a"]}, {"bfcl": ["a", "c"], "other": []})
    assert cases == {"bfcl": ["a", "b", "c"]}
    write_cases(tmp_path, cases)
    assert read_cases(tmp_path) == cases
    write_cases(tmp_path / "none", {})
    assert read_cases(tmp_path / "none") == {}
    (tmp_path / FILE).write_text("[1]")
    with pytest.raises(InputError, match="cannot be read"):
        read_cases(tmp_path)


def test_rows_for_sft_name_their_cases():
    rows = [
        {"messages": [], "benchmark_case": "bfcl/simple_python_1"},
        {"data_source": "bfcl", "extra_info": {"case": "parallel_2"}},
        {"messages": []},
        {"data_source": "gsm8k", "extra_info": {"answer": "4"}},
    ]
    assert cases_in_rows(rows) == {"bfcl": ["parallel_2", "simple_python_1"]}


def test_an_id_tells_its_category():
    ids = ["simple_python_3", "live_simple_3-1-0", "multi_turn_base_7", "multiple_1"]
    assert in_categories(ids, ("simple_python", "live_simple")) == ("simple_python_3", "live_simple_3-1-0")


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
def test_a_run_and_its_models_name_their_cases_and_those_of_the_cold_start(tmp_path, monkeypatch):
    """Prepare, cold start, training, evaluation and report, with the model of the package."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(RECIPE)
    (experiment,) = load_experiments(["tiny.yaml"], [])
    run_experiments([experiment], Selection(), plain_screen(lambda line: None))
    trained = [problem.key for problem in load_task("bfcl", source=next(Path("data").iterdir())).problems("train")]
    assert len(trained) == 6
    cold_start = read_cases(experiment.training.model.path)
    assert cold_start == {"bfcl": sorted(trained[:4])}
    (started,) = Path("runs/cold_starts").glob("*/provenance.json")
    assert read_provenance(started).benchmark_cases == cold_start
    assert read_provenance(experiment.run.provenance).benchmark_cases == {"bfcl": sorted(trained)}
    assert read_cases(experiment.trained_model) == {"bfcl": sorted(trained)}
    merge(experiment.run.path, tmp_path / "merged")
    assert read_cases(tmp_path / "merged") == {"bfcl": sorted(trained)}
    tasks = {json.loads(path.read_text())["task"] for path in experiment.run.evals.glob("*bfcl*.json")}
    assert tasks == {"bfcl", "bfcl_unseen"}

    # RL with another task from here: the cases stay.
    more = "name: more\nsteps: 1\nmodel: {path: MODEL}\ntask: {name: countdown, settings: {train: 4, test: 4}}\n"
    more += "rollout: {prompts: 2, n: 2, max_response_tokens: 4}\nvalidation: {every: 0}\n"
    Path("more.yaml").write_text(more.replace("MODEL", str(tmp_path / "merged")))
    assert read_cases(train(load_config(Path("more.yaml")))) == {"bfcl": sorted(trained)}


@needs_bfcl
@pytest.mark.parametrize(
    ("category", "trained_on", "left_out", "because"),
    [
        ("live_parallel", "live_parallel", 10, ""),
        ("multi_turn_base", "multi_turn_miss_func", 198, ", or on other variants of their scenarios"),
    ],
)
def test_bfcl_leaves_out_the_cases_that_the_model_was_trained_on(
    tmp_path, monkeypatch, category, trained_on, left_out, because
):
    """The official evaluator for real, on the smallest category, and on two cases of several turns."""
    monkeypatch.setenv("EGPO_BFCL_PYTHON", str(PYTHON))
    cases = first_cases(PYTHON, [category, trained_on], None)
    whole = cases[category]
    model = shutil.copytree(TINY, tmp_path / "model")
    write_cases(model, {"bfcl": [*cases[trained_on][:left_out], "simple_python_0"]})
    said = []
    asked = BfclSettings("", "", str(model), (category,), threads=2)
    with serving(Golds([category]).answer) as (url, _):
        target = find_target(url, None, str(model), "latest")
        outcome = evaluate_bfcl(target, asked, BfclOptions(out=tmp_path), said.append)
    others = len(whole) - left_out
    assert said[0] == (
        f"{left_out} cases are left out, because a model was trained on them{because}; {others} others are evaluated"
    )
    assert {sample.problem for sample in outcome.evaluation.samples} == {*whole[left_out:]}
    stored = read_evaluation(outcome.path)
    assert stored.header["task_settings"][LEFT_OUT] == left_out
    assert f"without{left_out}" in outcome.path.name


@needs_bfcl
def test_a_category_of_which_nothing_is_left_is_refused():
    whole = first_cases(PYTHON, ["live_parallel"], None)["live_parallel"]
    assert first_cases(PYTHON, ["live_parallel"], 2, whole[:3])["live_parallel"] == whole[3:5]
    with pytest.raises(InputError, match="trained on all 16 cases of live_parallel"):
        first_cases(PYTHON, ["live_parallel"], None, whole)
