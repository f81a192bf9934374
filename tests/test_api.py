"""The Python functions do what the commands do, accept objects, and say what is wrong with what they are given."""

import re
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import egpo
from egpo import EgpoError, InputError, Problem, RunResult, StepReport, Verdict
from egpo.errors import ConfigError

matplotlib = pytest.importorskip("matplotlib", reason="plots are drawn in .venv")
SMALL = {
    "model": {"path": "egpo-tiny"},
    "rollout": {"prompts": 2, "n": 2, "max_response_tokens": 12},
    "validation.every": 0,
    "steps": 2,
}


class Sums:
    """Two numbers between 0 and 9 to add."""

    def problems(self, split):
        start = 0 if split == "train" else 5
        return [self._problem(a, b) for a in range(start, start + 5) for b in range(4)]

    def _problem(self, a, b):
        return Problem(f"{a}+{b}", ({"role": "user", "content": f"{a} + {b} = ?"},), str(a + b))

    def prompt(self, problem):
        return [dict(message) for message in problem.messages]

    def judge(self, problem, text):
        return Verdict(float(problem.ground_truth in text), problem.ground_truth in text, "sum")

    def gold(self, problem):
        return problem.ground_truth


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def trained(name="first", **more):
    return egpo.train(SMALL, task=Sums(), name=name, quiet=True, **more)


def test_a_task_object_is_trained_on_and_the_run_is_an_object():
    seen: list[StepReport] = []
    run = trained(on_step=seen.append)
    assert [report.step for report in seen] == [1, 2]
    assert seen[-1].metrics == {key: value for key, value in run.metrics[-1].items() if key != "step"}
    assert run.steps == 2
    assert (run.model / "config.json").is_file()
    frame = run.to_pandas()
    assert list(frame.index) == [1, 2]
    assert "critic/score/mean" in frame.columns


def test_the_function_and_the_command_write_the_same_metrics():
    run = egpo.train(SMALL, task="countdown", name="function", quiet=True)
    from typer.testing import CliRunner

    from egpo.cli.main import app

    words = ["model.path=egpo-tiny", "rollout.prompts=2", "rollout.n=2", "rollout.max_response_tokens=12"]
    words += ["validation.every=0", "steps=2", "task.name=countdown", "name=command"]
    assert CliRunner().invoke(app, ["train", *words]).exit_code == 0
    assert run.run.folder.metrics.read_bytes() == Path("runs/command/metrics.jsonl").read_bytes()


def test_a_callback_stops_the_run_and_it_continues():
    run = trained(on_step=lambda report: report.step == 1)
    assert run.steps == 1
    whole = trained("whole")
    assert trained(resume=True).metrics == whole.metrics


def test_a_callback_that_raises_loses_nothing():
    def broken(report):
        raise KeyError("reward")

    with pytest.raises(
        EgpoError, match=r"on_step: it raised KeyError: 'reward' \(test_api.py, line \d+\) after step 1"
    ):
        trained(on_step=broken)
    assert RunResult(Path("runs/first")).steps == 1
    assert trained(resume=True).steps == 2


def test_a_callback_may_stop_with_a_comparison_of_numpy_or_torch_numbers():
    assert trained("numpy", on_step=lambda report: np.float32(report.step) > 0).steps == 1
    assert trained("torch", on_step=lambda report: torch.tensor(report.step) > 0).steps == 1
    with pytest.raises(InputError, match="on_step: it returned str; return True to stop"):
        trained("text", on_step=lambda report: "stop")
    with pytest.raises(InputError, match="on_step: list cannot be called"):
        trained("list", on_step=[print])
    assert not Path("runs/list").exists()


def test_it_works_in_two_threads_and_twice_in_one_process():
    runs = {}

    def work(name):
        runs[name] = trained(name).metrics

    threads = [threading.Thread(target=work, args=(f"thread{i}",)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert runs["thread0"] == runs["thread1"] == trained("main").metrics


def test_a_callback_may_evaluate_without_changing_the_run():
    whole = trained("whole")
    found = []

    def look(report):
        found.append(egpo.evaluate("egpo-tiny", Sums(), problems=2, n=2, max_tokens=4, out="evals"))

    assert trained(on_step=look).metrics == whole.metrics
    assert len(found) == 2


def test_quiet_prints_nothing(capfd):
    trained()
    assert capfd.readouterr() == ("", "")


def test_evaluate_compare_and_report():
    run = trained()
    sampling = {"problems": 4, "n": 2, "max_tokens": 8}
    base = egpo.evaluate("egpo-tiny", Sums(), like=run, **sampling)
    after = egpo.evaluate(run, Sums(), ks=[2], checkpoint=2, **sampling)
    assert set(after.figures.pass_at_k) == {2}
    assert len(after.to_pandas()) == len(after.samples) == 8
    assert after.path.parent == run.folder / "evals"
    assert "accuracy" in str(base)
    result = egpo.compare(base, run, metric="accuracy", out="runs")
    assert Path("runs/compare.json").is_file()
    assert len(result.to_pandas()) == len(result.verdicts) == 1
    assert "egpo-tiny and first are not distinguishable" in str(result) == repr(result)
    assert "<html" in egpo.report(run).read_text(encoding="utf-8")


def test_probe_gives_advice_and_a_picture():
    result = egpo.probe(model="egpo-tiny", task=Sums(), problems=4, n=2)
    assert len(result.to_pandas()) == 4
    assert result._repr_svg_().startswith("<svg")
    assert str(result)


def test_sft_returns_its_run():
    line = '{"messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]}\n'
    Path("chats.jsonl").write_text(line * 8)
    run = egpo.sft({"model.path": "egpo-tiny", "data.path": "chats.jsonl"}, name="cold", epochs=1, quiet=True)
    assert run.steps >= 1
    assert run.model.is_dir()


def test_plots_are_axes():
    matplotlib.use("agg")
    run = trained()
    assert run.plot().get_xlabel() == "step"
    with pytest.raises(InputError, match="no metric `rewrd`"):
        run.plot("rewrd")
    evaluation = egpo.evaluate(run, Sums(), problems=2, n=2, max_tokens=8)
    assert evaluation.plot().get_ylabel() == "problems"
    assert egpo.compare(evaluation, evaluation.path.parent.parent).plot() is not None


def test_a_wrong_key_names_the_nearest():
    with pytest.raises(ConfigError, match=r"rollout\.nn.*rollout\.n|did you mean"):
        egpo.train(SMALL, {"rollout.nn": 3}, task="countdown")
    with pytest.raises(InputError, match="recipe cannot hold"):
        egpo.train(SMALL, {"rollout.n": object()}, task="countdown")


def test_a_task_object_without_gold_and_a_class_are_refused():
    class NoGold(Sums):
        gold = None

    with pytest.raises(InputError, match=r"the class `.*NoGold` has no method `gold`; add it"):
        egpo.train(SMALL, task=NoGold())
    with pytest.raises(InputError, match=r"`Sums` is a class; give an object, as in Sums\(\)"):
        egpo.train(SMALL, task=Sums)
    assert not Path("runs").exists()


def test_a_task_object_that_raises_is_named_with_its_line():
    class Broken(Sums):
        def prompt(self, problem):
            raise LookupError("no prompt")

    with pytest.raises(
        InputError, match=r"Broken: the task's `prompt` raised LookupError: no prompt \(test_api.py, li"
    ):
        egpo.train(SMALL, task=Broken(), quiet=True)
    task = Sums()
    egpo.evaluate("egpo-tiny", task, problems=1, n=1, max_tokens=2)
    assert vars(task) == {}


def test_a_task_object_replaces_the_settings_of_a_recipe_and_takes_none():
    recipe = {**SMALL, "task": {"name": "countdown", "settings": {"max_numbers": 3}}, "steps": 1}
    run = egpo.train(recipe, task=Sums(), name="own", quiet=True)
    assert "max_numbers" not in run.run.folder.config.read_text()
    with pytest.raises(InputError, match="task_settings: they cannot be given with a task object"):
        egpo.evaluate("egpo-tiny", Sums(), task_settings={"size": 3})
    with pytest.raises(InputError, match="unknown setting `max_numberz`; did you mean `max_number"):
        egpo.probe(model="egpo-tiny", task="countdown", task_settings={"max_numberz": 3})


WRONG = {
    "recipe: Sums is not a recipe; give the name of a recipe": lambda: egpo.train(Sums()),
    "settings: list is not a mapping; give a mapping": lambda: egpo.train(SMALL, ["rollout.n=8"]),
    "compare: list is not a run or a model; give each as an argument": lambda: egpo.compare(["runs/a", "runs/b"]),
    "report: NoneType is not a run or a model; give a folder": lambda: egpo.report(None),
    "report: no run is given": lambda: egpo.report(),
    "evaluate: `n` is 0; give a whole number from 1 on": lambda: egpo.evaluate("egpo-tiny", Sums(), n=0),
    "evaluate: `problems` is 'all'": lambda: egpo.evaluate("egpo-tiny", Sums(), problems="all"),
    "probe: `problems` is -1": lambda: egpo.probe(model="egpo-tiny", task=Sums(), problems=-1),
    "pass@": lambda: egpo.evaluate("egpo-tiny", Sums(), n=2, ks=[4]),
    "split": lambda: egpo.evaluate("egpo-tiny", "countdown", split="tset"),
    "temperature": lambda: egpo.evaluate("egpo-tiny", Sums(), temperature=-1.0),
    "checkpoint `7`": lambda: egpo.evaluate(trained(), checkpoint=7),
}


@pytest.mark.parametrize("message", WRONG)
def test_arguments_of_the_wrong_form_are_named(message):
    with pytest.raises(InputError, match=re.escape(message)):
        WRONG[message]()


def test_verl_refuses_objects_that_its_processes_do_not_have():
    with pytest.raises(InputError, match="task: verl judges in other processes"):
        egpo.train(SMALL, task=Sums(), engine="verl")
    with pytest.raises(InputError, match="on_step: callbacks are for the engine `local`"):
        egpo.train(SMALL, task="countdown", engine="verl", on_step=print)


def test_no_task_and_no_checkpoint_are_named():
    with pytest.raises(InputError, match="no task"):
        egpo.evaluate("egpo-tiny")
    Path("empty").mkdir()
    with pytest.raises(InputError, match="no checkpoint yet"):
        _ = RunResult(Path("empty")).model


def test_a_run_may_be_given_as_text_and_may_be_empty():
    Path("empty").mkdir()
    run = RunResult("empty")
    assert run.folder == Path("empty")
    assert run.to_pandas().empty
    with pytest.raises(InputError, match="empty: the run has no metrics yet; let it train"):
        run.plot()
    with pytest.raises(InputError, match="nowhere: no such run folder"):
        _ = RunResult("nowhere").metrics


def test_advice_on_data_that_is_not_prepared_names_a_file():
    Path("rows.jsonl").write_text('{"nums": [1, 2], "target": 3}\n')
    with pytest.raises(InputError, match=r"is not prepared yet; egpo run recipe\.yaml --only prepare"):
        egpo.train(SMALL, {"prepare.source": "rows.jsonl"}, task="countdown")
