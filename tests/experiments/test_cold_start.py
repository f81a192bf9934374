"""RL starts from the model that was trained on gold answers; runs share it; test problems are never learned."""

import json
from pathlib import Path

import pytest

from egpo.cold_starts import cold_start_plan, require_inputs, with_thinking
from egpo.config import load_config
from egpo.errors import EgpoError, InputError
from egpo.experiments.validate import load_experiments
from egpo.tasks import load_task
from tests.experiments.test_pipeline import worked

pytestmark = pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
COLD = ("model.path=egpo-tiny", "cold_start.epochs=1", "cold_start.batch_tokens=256", "cold_start.lr=1e-3")


def plan_of(recipe, *overrides):
    return cold_start_plan(load_config(recipe, [*COLD, *overrides]))


def test_base_cold_start_and_trained_are_evaluated_and_rl_starts_from_the_cold_start(run_recipe, recipe):
    said = run_recipe(*COLD)
    assert [line.partition(":")[0] for line in said if line.startswith("cold_start: not done")] == ["cold_start"]
    plan = plan_of(recipe)
    assert str(plan.model) in Path("runs/tiny/config.yaml").read_text()
    paths = [path for path in Path("runs/tiny/evals").glob("*.json") if path.name != "probe.json"]
    assert {json.loads(path.read_text())["label"] for path in paths} == {
        "egpo-tiny", "cold start of egpo-tiny", "tiny step 2",
    }  # fmt: skip
    again = run_recipe(*COLD)
    assert not worked(again)
    assert any(line.startswith("cold_start: skipped") for line in again)


def test_runs_that_differ_later_share_it_and_other_data_does_not(run_recipe, recipe):
    run_recipe(*COLD, only=["prepare", "cold_start"])
    same = plan_of(recipe, "seed=3", "update.lr=5", "algorithm.estimator=egpo", "cold_start.thinking=false", "name=b")
    assert plan_of(recipe, "cold_start.thinking=false").folder == same.folder
    assert plan_of(recipe).model.is_dir()
    assert plan_of(recipe, "task.settings.seed=5").folder != plan_of(recipe).folder
    assert plan_of(recipe, "cold_start.problems=3").folder != plan_of(recipe).folder
    assert plan_of(recipe, "algorithm.estimator=egpo").folder != plan_of(recipe).folder


def test_the_examples_are_training_problems_with_their_gold_answers(run_recipe, recipe):
    run_recipe(*COLD, "cold_start.problems=4", only=["prepare", "cold_start"])
    plan = plan_of(recipe, "cold_start.problems=4")
    rows = [json.loads(line)["messages"] for line in plan.examples.read_text().splitlines()]
    task = load_task("countdown", train=12, test=6, max_numbers=3)
    problems = {json.dumps(task.prompt(problem)): problem for problem in task.problems("train")}
    assert len(rows) == 4
    for *prompt, answer in rows:
        assert task.judge(problems[json.dumps(prompt)], answer["content"]).correct


def test_train_and_probe_ask_for_the_cold_start_first(recipe):
    config = load_config(recipe, COLD)
    with pytest.raises(InputError, match=r"cold_start: the cold start is not trained yet; egpo run .* --only prepare,"):
        require_inputs(config, "recipe.yaml")


class Goldless:
    """A task whose gold answers are missing."""

    def problems(self, split):
        from egpo.tasks import Problem

        return [Problem(f"{split}{i}", ({"role": "user", "content": "x"},), "y") for i in range(4)]

    def prompt(self, problem):
        return [dict(message) for message in problem.messages]

    def judge(self, problem, text):
        from egpo import Verdict

        return Verdict(0.0, False, "wrong")

    def gold(self, problem):
        return ""


class Overlapping(Goldless):
    def problems(self, split):
        return super().problems("train")

    def gold(self, problem):
        return "y"


@pytest.mark.parametrize(
    ("task", "message"),
    [("Goldless", "the task has no gold answer"), ("Overlapping", "a problem is in both splits")],
)
def test_a_task_without_gold_answers_or_with_mixed_splits_is_refused(run_recipe, task, message):
    name = f"task.name=tests.experiments.test_cold_start:{task}"
    with pytest.raises(EgpoError, match=message) as caught:
        run_recipe(*COLD, name, "task.settings={}", only=["cold_start"])
    assert caught.value.exit_code == 2


def test_a_killed_cold_start_is_resumed_and_its_model_is_whole_or_absent(run_recipe, recipe, monkeypatch):
    from egpo import cold_starts

    def killed(trained, model):
        raise KeyboardInterrupt

    monkeypatch.setattr(cold_starts, "_publish", killed)
    with pytest.raises(KeyboardInterrupt):
        run_recipe(*COLD, only=["prepare", "cold_start"])
    plan = plan_of(recipe)
    assert not plan.model.exists()
    monkeypatch.undo()
    monkeypatch.chdir(recipe.parent)
    run_recipe(*COLD, only=["prepare", "cold_start"])
    assert (plan.model / "config.json").is_file()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("2+2 is 4\n#### 4", "<think>\n2+2 is 4\n</think>\n\n#### 4"),
        ("<think>a</think>\n<answer>1</answer>", "<think>a</think>\n<answer>1</answer>"),
        ("#### 4", "#### 4"),
    ],
)
def test_reasoning_is_put_between_the_tags(answer, expected):
    assert with_thinking(answer, ("<think>", "</think>")) == expected


def test_the_dry_run_names_it(recipe):
    from egpo.experiments.plan_text import planned
    from egpo.experiments.stages import Selection

    (experiment,) = load_experiments([str(recipe)], COLD)
    text = planned(experiment, Selection.of())
    assert "cold_start 1 epochs over all gold answers" in " ".join(text.split())
    assert "base and cold_start and trained" in " ".join(text.split())


def test_the_plan_of_a_model_from_the_index_fetches_nothing(recipe, monkeypatch):
    def fetched(name):
        raise AssertionError(f"{name} was fetched")

    monkeypatch.setattr("egpo.model_sources.indexed_folder", fetched)
    plan = plan_of(recipe, "model.path=smollm2-135m")
    assert plan.name.startswith("smollm2-135m-countdown-")
