"""verl, vLLM, Ray and FSDP2 for real, on this CPU, through our launcher. Each run takes a minute or two: few runs, each
of which shows many things."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from egpo.assets import resolve_model
from egpo.runs.dump import read_dump
from egpo.runs.folder import RunFolder
from egpo.runs.metrics import read_metrics
from egpo.runs.provenance import read_provenance
from egpo.serving.commands import Serving
from egpo.serving.served import served
from egpo.verl.launch.command import MARK
from egpo.verl.launch.places import VerlPlaces
from egpo.verl.launch.processes import LaunchedProcesses, identified
from egpo.verl.launch.record import LaunchRecord

pytestmark = [pytest.mark.verl, pytest.mark.timeout(900)]
pytest.importorskip("verl")

LIMIT_S = 420
EGPO = [sys.executable, "-m", "egpo"]
RECIPE = (
    "engine=verl",
    "verl.device=cpu",
    "task.name=countdown",
    "task.settings.mode=binary",
    "task.settings.max_numbers=3",
    "task.settings.max_number=12",
    "task.settings.max_target=60",
    'task.settings.prompt_format="Make {target} from {numbers}."',
    "task.settings.train=64",
    "task.settings.test=16",
    "rollout.prompts=4",
    "rollout.n=4",
    "rollout.max_response_tokens=96",
    "update.lr=3e-5",
    "checkpoints.every=2",
    "validation.every=2",
    "validation.problems=8",
    "watch.rollouts_every=1",
)


@pytest.fixture(scope="module")
def thinking_model(tmp_path_factory):
    """egpo-tiny behind a template that opens the thought in the prompt, as those of Qwen3-Thinking do."""
    folder = tmp_path_factory.mktemp("models") / "egpo-tiny-thinking"
    shutil.copytree(resolve_model("egpo-tiny"), folder)
    path = folder / "chat_template.jinja"
    template = path.read_text(encoding="utf-8")
    opened = template.replace(r"{{- '<|im_start|>assistant\n' }}", r"{{- '<|im_start|>assistant\n<think>\n' }}")
    assert opened != template
    path.write_text(opened, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def launched(runs, name, *words):
    command = [*EGPO, "train", *RECIPE, f"runs={runs}", f"name={name}", *words]
    with open(runs / f"{name}.txt", "a") as screen:
        return subprocess.Popen(command, stdout=screen, stderr=subprocess.STDOUT, env=os.environ | {"COLUMNS": "200"})


def screen_of(runs, name):
    log = RunFolder(runs / name).path / "verl.log"
    return (runs / f"{name}.txt").read_text() + (log.read_text(errors="replace")[-3000:] if log.exists() else "")


def steps_of(folder):
    return [line["step"] for line in read_metrics(folder.metrics)] if folder.metrics.exists() else []


def wait_for_step(runs, name, step, process):
    folder, deadline = RunFolder(runs / name), time.monotonic() + LIMIT_S
    while step not in steps_of(folder):
        assert process.poll() is None, screen_of(runs, name)
        assert time.monotonic() < deadline, screen_of(runs, name)
        time.sleep(0.2)
    return LaunchRecord.read(VerlPlaces(folder).launch)


def nobody_is_left(record):
    assert LaunchedProcesses(record.launch_id, record.processes).look() == set()
    assert [path for path in record.shared_memory if os.path.exists(path)] == []


@pytest.fixture(scope="module")
def resumed(runs, thinking_model):
    """Two ranks under `egpo`: stopped by Ctrl-C after the first checkpoint, then resumed to the end."""
    words = [f"model.path={thinking_model}", "algorithm.estimator=egpo", "verl.gpus=2", "steps=6"]
    process = launched(runs, "resumed", *words)
    record = wait_for_step(runs, "resumed", 3, process)
    assert len(record.processes) > 5
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=240) == 130, screen_of(runs, "resumed")
    nobody_is_left(record)
    assert re.search(r"newest checkpoint is that of step [24]; go on with: egpo train", screen_of(runs, "resumed"))
    process = launched(runs, "resumed", *words, "--resume")
    assert process.wait(timeout=LIMIT_S) == 0, screen_of(runs, "resumed")
    return RunFolder(runs / "resumed")


def test_a_stopped_run_goes_on_to_its_end_with_every_step_once(resumed):
    assert steps_of(resumed) == [0, 1, 2, 3, 4, 5, 6]
    (resumption,) = read_provenance(resumed.provenance).resumptions
    assert resumption.after_step in (2, 4), "verl may have saved once more before the signal reached it"
    assert resumed.latest.read_text() == "6"
    shards = {path.name for path in (resumed.checkpoint_of(6) / "actor").glob("model_*.pt")}
    assert shards == {"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"}


def test_its_metrics_have_the_names_of_every_engine_and_the_thinking_is_found(resumed):
    lines = read_metrics(resumed.metrics)
    wanted = ["actor/entropy", "actor/pg_loss", "actor/grad_norm", "critic/score/mean", "response_length/mean",
              "response_length/clip_ratio", "egpo/bonus/mean", "entropy/thinking", "groups/zero_variance_frac",
              "reward/error_frac", "critic/acc/mean"]  # fmt: skip
    for line in lines[1:]:
        assert [name for name in wanted if name not in line] == []
        # The template opens the tag in the prompt: who looks for it in the response alone finds nothing.
        assert line["egpo/segment/coverage"] > 0.9
    validated = [line["step"] for line in lines if "val-core/countdown/acc/mean@1" in line]
    assert validated == [0, 2, 4, 6]
    assert all("timing_s/step" in line for line in read_metrics(resumed.timings)[1:])


def test_its_rollouts_say_what_was_written_judged_and_measured(resumed):
    for step in (1, 2, 3, 4, 5, 6):
        records = read_dump(resumed.rollouts_of(step))
        assert len(records) == 16
        assert {record.step for record in records} == {step}
        assert len({record.problem for record in records}) == 4
        for record in records:
            assert "".join(record.tokens) == record.output
            assert len(record.token_entropy) == len(record.tokens)
            assert record.reason
            assert record.input.endswith("<think>\n")
            assert record.segments["thinking"] is not None
            assert record.data_source == "countdown"


@pytest.fixture(scope="module")
def merged(resumed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("merged") / "model"
    done = subprocess.run([*EGPO, "merge", str(resumed.path), "--out", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_it_is_reported_as_any_other_run(resumed):
    subprocess.run([*EGPO, "report", str(resumed.path)], check=True, capture_output=True)
    assert resumed.report.stat().st_size > 10_000


def test_the_merged_model_answers_alike_in_transformers_and_in_vllm(merged, tmp_path):
    exam = ["--task", "countdown", "--problems", "16", "--greedy", "--max-tokens", "96", "--json"]
    exam += ["--set", "mode=binary", "--set", "max_numbers=3", "--set", "max_number=12", "--set", "max_target=60"]
    exam += ["--set", "prompt_format=Make {target} from {numbers}.", "--set", "train=64", "--set", "test=16"]
    here = evaluated(str(merged), *exam, "--out", str(tmp_path / "here"))
    with served(Serving(str(merged), "trained", reasoning_parser="none", tool_parser="none")) as server:
        there = evaluated("trained", "--url", server.url, *exam, "--out", str(tmp_path / "there"))
    assert here["num_problems"] == there["num_problems"] == 16
    assert there["num_failed"] == 0
    assert abs(here["accuracy"]["value"] - there["accuracy"]["value"]) <= 1 / 16


def evaluated(*words):
    done = subprocess.run([*EGPO, "eval", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["evaluations"][0]


@pytest.fixture
def cluster(tmp_path):
    """A Ray cluster of this machine with one logical GPU, started apart from any run: its address."""
    mark, port = f"cluster-{os.getpid()}", free_port()
    words = [Path(sys.executable).with_name("ray"), "start", "--head", "--block", f"--port={port}"]
    words += ["--num-cpus=16", "--num-gpus=1", "--include-dashboard=false"]
    with open(tmp_path / "ray.txt", "w") as screen:
        ray = subprocess.Popen(
            words, stdout=screen, stderr=screen, start_new_session=True, env=os.environ | {MARK: mark}
        )
    processes = LaunchedProcesses(mark, driver=identified(ray.pid))
    deadline = time.monotonic() + 120
    try:
        # Ray puts the node's own address in the place of 127.0.0.1: it says which.
        while not (found := re.search(rf"[\d.]+:{port}\b", (tmp_path / "ray.txt").read_text())):
            assert time.monotonic() < deadline, (tmp_path / "ray.txt").read_text()
            processes.look()
            time.sleep(0.2)
        yield found[0]
    finally:
        processes.end()
        ray.wait()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_grpo_takes_a_step_on_a_cluster_that_is_joined_and_left_running(runs, cluster):
    words = ["model.path=egpo-tiny", "steps=1", "validation.every=0", "checkpoints.every=0", "--address", cluster]
    asked = [*words, "verl.gpus=2"]
    process = launched(runs, "asked", *asked)
    assert process.wait(timeout=LIMIT_S) == 2
    assert "2 GPUs are asked for (verl.gpus x verl.nodes), and the cluster has 1" in screen_of(runs, "asked")
    process = launched(runs, "grpo", *words)
    assert process.wait(timeout=LIMIT_S) == 0, screen_of(runs, "grpo")
    (line,) = read_metrics(RunFolder(runs / "grpo").metrics)
    assert line["step"] == 1
    assert "entropy/response" in line
    with socket.create_connection(cluster.split(":"), timeout=5):
        pass  # the cluster is its owner's, and still there


def test_a_worker_killed_in_mid_run_ends_it_with_the_cause_and_nobody_left(runs):
    words = ["model.path=egpo-tiny", "algorithm.estimator=egpo_calibrated", "steps=50", "validation.every=0"]
    process = launched(runs, "killed", *words, "verl.patience_minutes=5")
    record = wait_for_step(runs, "killed", 2, process)
    victim = next(one.pid for one in record.processes if b"WorkerDict" in name_of(one.pid))
    os.kill(victim, signal.SIGKILL)
    assert process.wait(timeout=LIMIT_S) == 1, screen_of(runs, "killed")
    nobody_is_left(record)
    said = (runs / "killed.txt").read_text()
    assert "ActorDiedError" in said or "no step for 5 minutes" in said
    assert "--resume" in said
    assert json.loads(RunFolder(runs / "killed").latest.read_text()) >= 2
    assert "egpo/weight/mean" in read_metrics(RunFolder(runs / "killed").metrics)[-1]


def name_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
