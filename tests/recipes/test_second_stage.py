"""The second stage of egpo-tiny in one command, and the comparison of two models on unseen problems."""

import json
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from egpo.assets import resolve_model
from egpo.evals.intervals import Estimate
from egpo.evals.paired import PairedDifference
from examples.egpo_tiny import compare, second_stage
from examples.egpo_tiny.corpus import examples
from examples.egpo_tiny.lessons import LESSONS

BY_NAME = {lesson.name: lesson for lesson in LESSONS}
SMALLEST = ["epochs=1", "update.batch_tokens=4096", "update.micro_tokens=4096"]


def run_main(module, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["it", *map(str, words)])
    module.main()


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
def test_one_command_writes_a_model_that_the_package_can_hold(tmp_path, monkeypatch, capsys):
    words = ["--first", "egpo-tiny", "--out", tmp_path, "--conversations", 40, "--set", *SMALLEST]
    monkeypatch.setattr(second_stage, "HELD_OUT", 10)
    run_main(second_stage, monkeypatch, *words)
    made, first = tmp_path / "model", Path(resolve_model("egpo-tiny"))
    assert {file.name for file in made.iterdir()} == {file.name for file in first.iterdir()}
    assert sum(file.stat().st_size for file in made.iterdir()) <= second_stage.LARGEST_BYTES
    assert AutoTokenizer.from_pretrained(made).get_vocab() == AutoTokenizer.from_pretrained(first).get_vocab()
    weights = (made / "model.safetensors").read_bytes()
    assert weights != (first / "model.safetensors").read_bytes()
    assert len(weights) == (first / "model.safetensors").stat().st_size
    assert AutoModelForCausalLM.from_pretrained(made).num_parameters() > 2_500_000
    run_main(second_stage, monkeypatch, *words)  # everything is there already
    assert (made / "model.safetensors").read_bytes() == weights


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
def test_a_model_does_not_differ_from_itself(tmp_path, monkeypatch):
    words = ["egpo-tiny", resolve_model("egpo-tiny"), "--out", tmp_path, "--problems", 6, "--n", 2, "--device", "cpu"]
    run_main(compare, monkeypatch, *words, "--exams", "gsm8k", "toolbox")
    told = json.loads((tmp_path / "comparison.json").read_text())
    assert [row["exam"] for row in told["rows"]] == [
        f"{exam}, {mode}" for exam in ("gsm8k", "toolbox") for mode in ("sampled", "greedy")
    ]
    assert all(row["delta"]["value"] == 0 and row["delta"]["num_problems"] == 6 for row in told["rows"])
    assert [row["base"] for row in told["rows"]][1] > 0, "greedy word problems are nearly all right"


@pytest.mark.parametrize("name", ["countdown", "gsm8k", "toolbox", "toolbox_two"])
def test_problems_of_a_comparison_are_unseen_and_distinct(name):
    lesson = BY_NAME[name]
    chosen = {problem.key for problem in compare.held_out(lesson, lesson.load(), 1024)}
    assert len(chosen) == 1024
    for seed, stage in ((0, "first"), (10, "second")):
        drawn = {one.problem.key for one in examples(1500, seed=seed, stage=stage) if one.lesson.name == name}
        assert not drawn & chosen


def test_tool_calls_of_a_comparison_are_those_that_no_corpus_has(monkeypatch):
    monkeypatch.setattr(compare, "CONVERSATIONS", {"first": 3000, "second": 1000})
    lesson = BY_NAME["function_calling"]
    tested = [problem.key for problem in lesson.load().problems("test")]
    chosen = [problem.key for problem in compare.held_out(lesson, lesson.load(), 400)]
    assert chosen[:256] == tested
    assert len(set(chosen)) == 400
    assert not compare.corpus_keys("function_calling") & set(chosen)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(-0.019, 0.01, "held"), (-0.03, 0.01, "not shown"), (-0.05, -0.021, "worse"), (0.1, 0.2, "held")],
)
def test_an_accuracy_is_held_if_its_interval_lies_above_the_margin(low, high, verdict):
    delta = Estimate((low + high) / 2, low, high, 1024)
    assert compare.verdict_on(PairedDifference(0.5, 0.5, delta, "McNemar", "better"), 0.02) == verdict
