"""What is done stays done, what has changed is done again, and what fails says how to go on."""

import json
import os
import shutil
from pathlib import Path

import pytest

from egpo.errors import ConfigError, EgpoError, InputError
from egpo.experiments.pipeline import StageFailedError, run_experiments
from egpo.experiments.screen import plain_screen
from egpo.experiments.stages import STAGES, Selection
from egpo.experiments.validate import load_experiments
from egpo.runs.folder import locked

pytestmark = pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
JOBS = ["prepare", "probe", "train", "eval: base", "eval: trained", "report"]


def worked(said):
    """The jobs that were done, in order: those that were begun."""
    return [job for line in said for job in JOBS if line.startswith((f"{job}: not done", f"{job}: changed",
            f"{job}: output", f"{job}: requested"))]  # fmt: skip


def skipped(said):
    return [line.partition(": skipped")[0] for line in said if ": skipped" in line]


def times():
    paths = [*Path("runs").rglob("*"), *Path("data").rglob("*")]
    return {
        path: path.stat().st_mtime_ns
        for path in paths
        if path.is_file() and not path.name.startswith(("stages.json", ".lock"))
    }


def test_all_stages_leave_what_they_promise_and_are_then_skipped(run_recipe):
    assert worked(run_recipe()) == JOBS
    for name in ("config.yaml", "metrics.jsonl", "report.html", "stages.json", "evals/probe.json"):
        assert (Path("runs/tiny") / name).is_file()
    names = {path.name for path in Path("runs/tiny/evals").glob("*.json")}
    assert {"countdown-n2-t1-step2.json", "countdown-greedy-step2.json"} < names
    assert len(names) == 5
    before = times()
    said = run_recipe()
    assert skipped(said) == JOBS
    assert times() == before


def test_the_probe_samples_as_the_training_does(run_recipe):
    run_recipe("rollout.top_k=5", "rollout.min_p=0.1", "rollout.top_p=0.9", only=["prepare", "probe"])
    sampling = json.loads(Path("runs/tiny/evals/probe.json").read_text())["evaluation"]["sampling"]
    assert (sampling["top_k"], sampling["min_p"], sampling["top_p"]) == (5, 0.1, 0.9)


def test_only_what_depends_on_a_change_is_done_again(run_recipe):
    run_recipe()
    said = run_recipe("eval.n=4", "eval.problems=3")
    assert worked(said) == ["eval: base", "eval: trained", "report"]
    assert "eval: base: changed: exams" in said
    assert worked(run_recipe("eval.n=4", "eval.problems=3", "probe.n=4")) == ["probe", "report"]
    said = run_recipe("eval.n=4", "eval.problems=3", "probe.n=4", "steps=3")
    assert worked(said) == ["train", "eval: trained", "report"]


def test_other_data_is_other_data_for_every_stage(run_recipe):
    run_recipe(only=["prepare", "probe"])
    said = run_recipe("task.settings.train=10", only=["prepare", "probe"])
    assert worked(said) == ["prepare", "probe"]
    assert len(list(Path("data").iterdir())) == 2


def test_the_reward_is_no_part_of_the_data(run_recipe):
    run_recipe(only=["prepare"])
    assert worked(run_recipe("task.settings.mode=binary", only=["prepare"])) == []


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"broken")], ids=["gone", "broken"])
def test_an_output_that_is_no_longer_as_it_was_left_is_made_again(run_recipe, harm):
    run_recipe()
    (data,) = Path("data").glob("*/test.parquet")
    figures = Path("runs/tiny/evals/countdown-greedy-step2.json")
    before = data.read_bytes(), figures.read_bytes()
    harm(data)
    harm(figures)
    said = run_recipe()
    assert worked(said) == ["prepare", "eval: trained"]
    assert "eval: trained: output changed or missing: evals/countdown-greedy-step2.json" in said
    assert (data.read_bytes(), figures.read_bytes()) == before


def test_a_record_that_is_lost_costs_no_training(run_recipe):
    run_recipe()
    before = Path("runs/tiny/metrics.jsonl").read_bytes()
    Path("runs/tiny/stages.json").unlink()
    assert "all 2 steps" not in "".join(run_recipe())
    assert Path("runs/tiny/metrics.jsonl").read_bytes() == before


def test_a_failed_stage_keeps_what_was_done_and_the_same_command_goes_on(run_recipe):
    wrong = ["eval.tasks=[{name: gsm8k, settings: {source: nowhere}}]"]
    with pytest.raises(StageFailedError) as caught:
        run_recipe(*wrong)
    assert caught.value.exit_code == 2
    cause, last = caught.value.faults
    assert "nowhere" in str(cause)
    assert "stage `eval` did not finish; finished stages: prepare, cold_start, probe, train, merge" in str(last)
    assert last.fix == "fix the cause, then run the same command again to continue"
    assert worked(run_recipe()) == ["eval: base", "eval: trained", "report"]


def test_another_training_is_refused_with_its_differences_and_nothing_is_lost(run_recipe):
    run_recipe()
    before = times()
    with pytest.raises(EgpoError) as caught:
        run_recipe("update.lr=1e-2")
    told = [str(fault) for fault in caught.value.faults]
    assert any("update.lr: 0.001 -> 0.01" in line for line in told)
    assert times() == before
    with pytest.raises(EgpoError, match=r"task.settings.train: 12 -> 10"):
        run_recipe("task.settings.train=10")
    assert times() == before
    assert skipped(run_recipe()) == JOBS


def test_only_and_from(run_recipe):
    for stage in ("probe", "train", "eval"):
        with pytest.raises(EgpoError, match=r"the data is not prepared; run the stage `prepare` first"):
            run_recipe(only=[stage])
    run_recipe(only=["prepare"])
    with pytest.raises(EgpoError, match="there is no model of step 2 yet; run the stages `train` and `merge` first"):
        run_recipe(only=["eval"])
    assert worked(run_recipe(only=["prepare", "train"])) == ["train"]
    assert worked(run_recipe(only=["eval"])) == ["eval: base", "eval: trained"]
    assert worked(run_recipe(start="eval")) == ["eval: base", "eval: trained", "report"]
    before = Path("runs/tiny/metrics.jsonl").read_bytes()
    run_recipe(start="train")
    assert Path("runs/tiny/metrics.jsonl").read_bytes() == before


def test_the_stages_that_can_be_chosen():
    def names(selection):
        return [stage.name for stage in selection.stages]

    assert names(Selection.of(["report", "train"])) == ["train", "report"]
    assert names(Selection.of(start="merge")) == ["merge", "eval", "report"]
    assert names(Selection.of()) == list(STAGES)
    assert STAGES["train"] not in Selection.of(start="prepare").again
    with pytest.raises(InputError, match="unknown stage `evl`; did you mean `eval`"):
        Selection.of(["evl"])
    with pytest.raises(InputError, match="--only and --from cannot be combined"):
        Selection.of(["eval"], "train")


@pytest.mark.parametrize(("words", "exam"), [([], "countdown-n2-t1"), (["eval.problems=5"], "countdown-first5-n2-t1")])
def test_recipes_of_one_call_share_data_and_base_and_end_in_a_verdict(recipe, words, exam):
    other = recipe.with_name("other.yaml")
    other.write_text(
        "include: recipe.yaml\nname: other\nalgorithm: {estimator: egpo, egpo: {entropy_mode: response}}\n"
    )
    said = []
    experiments = load_experiments([str(recipe), str(other)], words)
    run_experiments(experiments, Selection(), plain_screen(said.append))
    assert len(list(Path("data").iterdir())) == 1
    assert "  probe: copied from runs/tiny" in said
    assert "  eval: base: copied from runs/tiny" in said
    one, two = (json.loads(Path(f"runs/{name}/provenance.json").read_text())["data"] for name in ("tiny", "other"))
    assert one == two
    for figures in Path("runs/tiny/evals").glob("*.json"):
        if "step" not in figures.name:
            assert (Path("runs/other/evals") / figures.name).read_bytes() == figures.read_bytes()
    assert any(line.startswith(f"{exam}: ") and "grpo" in line and "egpo" in line for line in said)
    assert Path("runs/report.html").is_file()


def test_what_cannot_be_compared_fairly_is_not_and_that_is_no_failure(recipe):
    other = recipe.with_name("other.yaml")
    other.write_text("include: recipe.yaml\nname: other\nupdate: {lr: 1e-2}\n")
    said = []
    run_experiments(load_experiments([str(recipe), str(other)]), Selection(), plain_screen(said.append))
    assert "countdown-n2-t1: not compared" in said
    assert any("update.lr" in line for line in said)


def test_seeds_are_runs_of_their_own(recipe):
    found = load_experiments([str(recipe)], ["steps=5"], [0, 3])
    assert [(one.name, one.config.seed, one.config.steps) for one in found] == [("tiny-s0", 0, 5), ("tiny-s3", 3, 5)]
    assert found[0].data.folder == found[1].data.folder
    for seed in (-1, 2**32):
        with pytest.raises(ConfigError, match=f"`seed` is {seed}"):
            load_experiments([str(recipe)], [], [seed])


def test_every_recipe_is_checked_before_the_first_one_begins(recipe):
    other = recipe.with_name("other.yaml")
    other.write_text("include: recipe.yaml\nupdate: {lrr: 1}\n")
    with pytest.raises(ConfigError, match="unknown key `lrr`"):
        load_experiments([str(recipe), str(other)])
    other.write_text("include: recipe.yaml\n")
    with pytest.raises(InputError, match="two experiments would write to runs/tiny"):
        load_experiments([str(recipe), str(other)])
    with pytest.raises(InputError, match="no recipe"):
        load_experiments([])


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"format": 1, "jobs": {"prepare": {"inputs": 3, "outputs": {}, "time": ""}}}']
)
def test_a_record_that_is_none_is_named(run_recipe, text):
    run_recipe(only=["prepare"])
    Path("runs/tiny/stages.json").write_text(text)
    with pytest.raises(InputError, match=r"stages.json: the file is not a valid record of stages .*; remove the file"):
        run_recipe()


def test_a_task_from_outside_has_nothing_to_prepare(run_recipe):
    said = run_recipe("task={name: 'tests.local.run_tasks:Sparse'}", only=["prepare", "train"])
    assert "prepare: nothing to do" in said
    assert not Path("data").exists()
    shutil.rmtree("runs/tiny")
    with pytest.raises(EgpoError, match="reads its own data"):
        run_recipe("task={name: 'tests.local.run_tasks:Sparse'}", "prepare.source=x.jsonl", only=["prepare"])


def test_another_runs_broken_record_is_no_concern(run_recipe):
    Path("runs/other").mkdir(parents=True)
    Path("runs/other/stages.json").write_text("{")
    assert worked(run_recipe(only=["prepare", "probe"])) == ["prepare", "probe"]


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("eval.tasks=[{name: gsm9k}]", "eval.tasks: unknown task `gsm9k`"),
        ("eval.tasks=[{name: gsm8k, settings: {moode: binary}}]", "unknown setting `moode`"),
        ("eval.tasks=[{name: countdown}]", "eval.tasks: the task `countdown` is named twice"),
        ("task={name: contdown}", "task: unknown task `contdown`; did you mean `countdown`"),
        (
            "eval.bfcl={categories: [multi_turn_bse]}",
            "eval.bfcl.categories: there is no category `multi_turn_bse`; did you mean",
        ),
        ("eval.bfcl={categories: [memory_kv]}", "eval.bfcl.categories: `memory_kv` cannot be evaluated"),
    ],
)
def test_what_a_later_stage_would_refuse_is_refused_before_the_first_begins(recipe, override, fault):
    with pytest.raises(ConfigError) as caught:
        load_experiments([str(recipe)], [override])
    assert fault in str(caught.value)


def test_all_that_later_stages_would_refuse_is_said_at_once(recipe):
    words = ["eval.serve=true", "rollout.stop=[END]", "eval.bfcl={categories: [nope]}", "eval.tasks=[{name: nope}]"]
    with pytest.raises(ConfigError) as caught:
        load_experiments([str(recipe)], words)
    assert [fault.where for fault in caught.value.faults] == ["eval.tasks", "eval.serve", "eval.bfcl.categories"]


def test_two_pipelines_of_one_run_do_not_write_over_each_other(run_recipe):
    run_recipe(only=["prepare"])
    with (
        locked(Path("runs/tiny"), ".lock-stages"),
        pytest.raises(InputError, match=f"process {os.getpid()} is writing this run"),
    ):
        run_recipe()
    with locked(Path("runs/tiny")), pytest.raises(EgpoError, match="is writing this run") as caught:
        run_recipe(only=["prepare", "train"])
    assert "stage `train` did not finish; finished stages: prepare" in str(caught.value)


def test_what_is_said_about_the_other_engine_is_no_reason_to_train(run_recipe):
    run_recipe()
    assert skipped(run_recipe("verl.gpus=4", "verl.python=/opt/python")) == JOBS


@pytest.mark.parametrize("harmed", ["model.safetensors", "config.json"])
def test_a_checkpoint_that_was_cut_off_is_no_model(run_recipe, harmed):
    run_recipe()
    path = Path("runs/tiny/checkpoints/global_step_2/actor/huggingface") / harmed
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(EgpoError, match=f"{harmed}: the file has 20 bytes"):
        run_recipe()


def test_metrics_that_were_edited_are_no_metrics(run_recipe):
    run_recipe()
    Path("runs/tiny/metrics.jsonl").write_text("")
    with pytest.raises(EgpoError, match="no line for step"):
        run_recipe()


def test_an_engine_that_is_not_here_is_missed_before_the_probe(run_recipe):
    words = ["engine=verl", "verl.device=cpu", "verl.python=/no/such/python"]
    with pytest.raises(InputError, match=r"verl.python: `/no/such/python` cannot be run"):
        run_recipe(*words)
    assert not Path("data").exists()
    assert worked(run_recipe(*words, only=["prepare"])) == ["prepare"]


def test_what_verl_lacks_is_refused_before_the_first_stage(recipe):
    with pytest.raises(ConfigError, match=r"rollout\.stop"):
        load_experiments([str(recipe)], ["engine=verl", "rollout.stop=[END]"])
