"""`egpo plan` prints what a step takes, and its exit code says whether it fits."""

import json

from typer.testing import CliRunner

from egpo.cli.main import app
from egpo.errors import InputError

RECIPE = ["model.path=egpo-tiny", "task.name=countdown", "rollout.prompts=4", "rollout.n=4"]


def run(*words):
    return CliRunner().invoke(app, ["plan", *RECIPE, *words])


def test_the_parts_and_the_seconds_are_shown():
    done = run("--card", "a100", "--lengths")
    assert done.exit_code == 0, done.output
    for word in ("A100, 80 GB", "activations", "peak", "The step fits.", "s per step", "longest"):
        assert word in done.output


def test_json_holds_what_the_table_does():
    done = run("--json", "--response-tokens", "64", "--lengths")
    report = json.loads(done.output)
    assert report["fits"] is True
    assert report["job"]["response_tokens"] == 64
    assert report["memory"]["parts"]["weights"] > 0
    assert report["longest_responses"]["8"]["h200"] >= report["longest_responses"]["8"]["rtx4090"] > 0


def test_what_does_not_fit_has_exit_code_1():
    done = run("--card", "rtx4090", "rollout.max_response_tokens=100000", "update.micro_tokens=50000000")
    assert done.exit_code == 1
    assert "does not fit" in done.output


def test_a_plan_for_verl_shows_shards_stages_splits_and_assumptions():
    done = run("engine=verl", "verl.gpus=8", "--assume", "overlap=0.5")
    assert done.exit_code == 0, done.output
    for word in ("8 x H200", "GiB on each GPU", "weight_sync", "tensor x data parallel", "(best)", "overlap=0.5"):
        assert word in done.output
    report = json.loads(run("engine=verl", "verl.gpus=8", "--json").output)
    assert report["best"] == {"tensor_parallel": 1, "data_parallel": 8}
    assert [plan["split"]["tensor_parallel"] for plan in report["plans"]] == [1, 2]
    assert set(report["plans"][0]["seconds"]) >= {"rollout_s", "log_probs_s", "update_s", "weight_sync_s"}


def test_a_plan_for_verl_shows_the_fastest_fsdp_size_beside_that_of_the_recipe():
    size = "verl.actor_rollout_ref.actor.fsdp_config.fsdp_size"
    done = run("engine=verl", "verl.gpus=8", f"{size}=4", "model.lora.rank=8")
    assert done.exit_code == 0, done.output
    for word in ("fsdp_size", "this recipe)", "best"):
        assert word in done.output
    report = json.loads(run("engine=verl", "verl.gpus=8", f"{size}=4", "--json").output)
    assert {plan["fsdp_size"] for plan in report["plans"]} == {4}
    assert [plan["fsdp_size"] for plan in report["fsdp_sizes"]] == [8, 4, 2, 1]
    fastest = min(report["fsdp_sizes"], key=lambda plan: plan["step_s"])
    assert report["best_fsdp_size"] == fastest["fsdp_size"]
    assert "node_gpus=8," in done.output.replace("\n", " ")
    done = run("engine=verl", "verl.gpus=2", "verl.nodes=4")
    assert "node_gpus=2," in done.output.replace("\n", " ")
    refused = run("engine=verl", "verl.gpus=8", f"{size}=3")
    assert isinstance(refused.exception, InputError)
    assert f"{size}: 8 GPUs cannot be divided into groups of 3" in str(refused.exception)


def test_assumptions_belong_to_a_cluster():
    for words in (["--assume", "overlap=0.5"], ["engine=verl", "--assume", "overlap"], ["engine=verl", "--lengths"]):
        assert isinstance(run(*words).exception, InputError)
